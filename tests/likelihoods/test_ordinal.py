"""Ordered levels: cumulative logits by hand, where thresholds start, what is recovered."""

import math

import pytest
import torch
from torch import nn

import bbh
from bbh.likelihoods import Categorical, Ordinal
from bbh.predictive import OrdinalPredictive

S, B, K = 3, 7, 5


def with_thresholds(*thresholds: float) -> Ordinal:
    likelihood = Ordinal(len(thresholds) + 1).double()
    values = torch.tensor(thresholds)
    with torch.no_grad():
        likelihood.first_threshold.copy_(values[0])
        likelihood.log_gaps.copy_(values.diff().log())
    return likelihood


class TestProbabilities:
    def test_they_are_differences_of_sigmoids(self):
        likelihood = with_thresholds(-1.5, -0.2, 0.3, 2.0)
        outputs = 2 * torch.randn(S, B, 1).double()
        edges = torch.tensor([-math.inf, -1.5, -0.2, 0.3, 2.0, math.inf]).double()
        reached = torch.sigmoid(edges - outputs.unsqueeze(-1))
        expected = reached.diff(dim=-1)
        torch.testing.assert_close(likelihood.level_log_probs(outputs).exp(), expected)
        targets = torch.randint(0, K, (B, 1))
        each = expected.gather(-1, targets.expand(S, B, 1).unsqueeze(-1)).log()
        torch.testing.assert_close(likelihood.log_prob(outputs, targets), each.flatten(2).sum(2))

    def test_far_from_all_thresholds_nothing_cancels(self):
        likelihood = with_thresholds(-1.0, 0.0, 1.0)
        outputs = torch.tensor([[800.0]]).double().requires_grad_()
        log_prob = likelihood.log_prob(outputs, torch.tensor([1]))
        # log[σ(−800) − σ(−801)] = −800 + log(1 − e⁻¹), to all digits.
        assert log_prob.item() == pytest.approx(-800 + math.log(1 - math.exp(-1)))
        log_prob.sum().backward()
        assert outputs.grad is not None
        assert outputs.grad.item() == pytest.approx(-1)

    def test_thresholds_rise_whatever_is_learned(self):
        likelihood = Ordinal(6)
        with torch.no_grad():
            likelihood.log_gaps.copy_(5 * torch.randn(4))
        assert (likelihood.thresholds.diff() > 0).all()


class TestPredictive:
    def predictive(self) -> OrdinalPredictive:
        likelihood = with_thresholds(-1.5, -0.2, 0.3, 2.0)
        outputs = 2 * torch.randn(S, B, 1).double()
        with torch.no_grad():
            return likelihood.predictive(likelihood.sums(outputs), S, outputs)

    def test_classes_in_their_order(self):
        predictive = self.predictive()
        assert predictive.mean.shape == (B, 1, K)
        torch.testing.assert_close(predictive.mean.sum(-1), torch.ones(B, 1).double())
        assert predictive.draws is not None
        torch.testing.assert_close(predictive.mean, predictive.draws.mean(0))
        torch.testing.assert_close(
            predictive.entropy[:, 0], bbh.metrics.entropy(predictive.mean[:, 0])
        )
        assert (predictive.mutual_information >= 0).all()
        mean = sum(level * predictive.mean[..., level] for level in range(K))
        torch.testing.assert_close(predictive.expected_level, mean)
        square = sum(level**2 * predictive.mean[..., level] for level in range(K))
        torch.testing.assert_close(predictive.level_std, (square - mean**2).sqrt())

    def test_quantiles_are_levels(self):
        predictive = self.predictive()
        levels = (1e-9, 0.2, 0.5, 1 - 1e-12)
        result = predictive.quantiles(levels)
        for row in range(B):
            reached = predictive.mean[row, 0].cumsum(0)
            for level, found in zip(levels, result[:, row, 0].tolist(), strict=True):
                assert 0 <= found < K
                assert found == K - 1 or reached[found] >= level
                assert found == 0 or reached[found - 1] < level
        lower, upper = predictive.interval(0.8)
        assert (lower <= upper).all()
        with pytest.raises(ValueError, match="strictly"):
            predictive.quantiles([0.5, 1.0])

    def test_metrics_know_the_order(self):
        near, far = torch.zeros(2, 1, K), torch.zeros(2, 1, K)
        near[..., 1], far[..., 4] = 1, 1
        targets = torch.zeros(2, 1).long()
        likelihood = Ordinal(K)

        def metrics(mean):
            blank = mean[..., 0]
            return likelihood.metrics(
                OrdinalPredictive(mean, 1, blank, blank, blank, blank.long()), targets
            )

        assert metrics(near)["brier"] == metrics(far)["brier"]
        assert metrics(near)["rps"] == pytest.approx(1)
        assert metrics(far)["rps"] == pytest.approx(4)
        assert metrics(far)["error"] == 100


class TestStart:
    def test_an_output_of_zero_has_the_frequencies_of_the_levels(self):
        likelihood = Ordinal(3)
        targets = torch.tensor([0] * 9 + [1] * 4 + [2] * 4).unsqueeze(1)
        likelihood.fit_targets(targets)
        probs = likelihood.level_log_probs(torch.zeros(1)).exp()[0]
        # Each level is counted once more.
        torch.testing.assert_close(probs.detach(), torch.tensor([0.5, 0.25, 0.25]))
        assert not likelihood.waits_for_targets
        weighted = Ordinal(3)
        weighted.fit_targets(torch.tensor([0, 1, 2, 1]), torch.tensor([9.0, 4.0, 4.0, 0.0]))
        torch.testing.assert_close(weighted.thresholds, likelihood.thresholds)

    def test_levels_that_do_not_occur_and_targets_that_are_not_known(self):
        likelihood = Ordinal(4, ignore_index=-1)
        likelihood.fit_targets(torch.tensor([[0, -1], [3, -1]]))
        assert likelihood.thresholds.isfinite().all()
        torch.testing.assert_close(
            likelihood.level_log_probs(torch.zeros(1)).exp().detach()[0],
            torch.tensor([2.0, 1.0, 1.0, 2.0]) / 6,
        )

    def test_files_keep_thresholds(self, tmp_path):
        posterior = bbh.methods.maximum_a_posteriori(nn.Linear(2, 1), Ordinal(4))
        posterior.likelihood.fit_targets(torch.tensor([0, 0, 1, 2, 3]))
        bbh.save(posterior, tmp_path / "file")
        read = bbh.load(tmp_path / "file", nn.Linear(2, 1)).likelihood
        assert torch.equal(read.thresholds, posterior.likelihood.thresholds)
        assert not read.waits_for_targets


def test_a_proportional_odds_model_is_recovered():
    inputs = torch.randn(3000, 1)
    thresholds = torch.tensor([-1.5, 0.0, 0.5, 2.0])
    uniform = torch.rand(3000, 1)
    noise = (uniform / (1 - uniform)).log()
    levels = torch.bucketize(1.4 * inputs + noise, thresholds)
    posterior = bbh.methods.maximum_a_posteriori(nn.Linear(1, 1, bias=False), Ordinal(5))
    posterior.likelihood.fit_targets(levels)
    optimizer = torch.optim.Adam(posterior.parameters(), lr=0.1)
    step = bbh.TrainingStep(posterior, optimizer, num_data=3000)
    for _ in range(80):
        step((inputs, levels))
    found = posterior.likelihood.thresholds.detach()
    torch.testing.assert_close(found, thresholds, atol=0.15, rtol=0)
    assert posterior.sample(1)["weight"].item() == pytest.approx(1.4, abs=0.12)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([[5]]), "from 5 to 5"),
        (torch.tensor([[-1]]), "ignore_index"),
        (torch.tensor([[1.0]]), r"targets\.long\(\)"),
        (torch.tensor([1]), "Reshape the targets"),
    ],
)
def test_targets_are_levels(targets, message):
    with pytest.raises(ValueError, match=message):
        Ordinal(5).log_prob(torch.zeros(1, 1, 1), targets)


def test_settings():
    with pytest.raises(ValueError, match="three levels"):
        Ordinal(2)
    with pytest.raises(ValueError, match="one of the levels"):
        Ordinal(5, ignore_index=4)
    assert repr(Ordinal(3)).startswith("Ordinal(num_levels=3, thresholds=[-0.6931, 0.6931]")
    assert Ordinal(3).prior_scale == Categorical().prior_scale
