"""Tokens, pixels, labels and missing targets: what counts, what it weighs, and what N means."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Laplace,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Quantile,
    StudentT,
)

S, B, T, C = 3, 4, 6, 5
IGNORED = -100


def some_ignored(*shape: int) -> torch.Tensor:
    targets = torch.randint(0, C, shape)
    targets[torch.rand(shape) < 0.4] = IGNORED
    return targets


class TestClassDim:
    @pytest.mark.parametrize("positions", [(), (T,), (2, 3), (2, 2, 2)])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_it_is_torchs_cross_entropy(self, positions, weighted):
        outputs = torch.randn(S, B, C, *positions)
        targets = some_ignored(B, *positions)
        weights = (1.0, 2.0, 0.5, 0.0, 3.0) if weighted else None
        result = Categorical(weights, IGNORED, class_dim=1).log_prob(outputs, targets)
        for draw in range(S):
            loss = F.cross_entropy(
                outputs[draw],
                targets,
                None if weights is None else torch.tensor(weights),
                ignore_index=IGNORED,
                reduction="none",
            )
            torch.testing.assert_close(result[draw], -loss.reshape(B, -1).sum(1))

    def test_predictions_have_classes_last(self):
        outputs = torch.randn(S, B, C, 2, 3)
        first, last = Categorical(class_dim=1), Categorical()
        moved = outputs.movedim(2, -1)
        here = first.predictive(first.sums(outputs), S, outputs)
        there = last.predictive(last.sums(moved), S, moved)
        assert here.mean.shape == (B, 2, 3, C)
        assert here.entropy.shape == here.labels.shape == (B, 2, 3)
        for name in ("mean", "entropy", "expected_entropy", "confidence", "labels", "draws"):
            torch.testing.assert_close(getattr(here, name), getattr(there, name))

    def test_the_axis_is_never_guessed(self):
        # With as many classes as positions, nothing else could tell.
        outputs, targets = torch.randn(S, B, C, C), torch.randint(0, C, (B, C))
        first = Categorical(class_dim=1).log_prob(outputs, targets)
        assert not torch.allclose(first, Categorical().log_prob(outputs, targets))
        with pytest.raises(ValueError, match="class_dim=1"):
            Categorical().log_prob(torch.randn(S, B, C, T), torch.randint(0, C, (B, T)))
        with pytest.raises(ValueError, match="no such axis"):
            Categorical(class_dim=2).log_prob(torch.randn(S, B, C), torch.randint(0, C, (B,)))
        with pytest.raises(ValueError, match="axis 0 holds the examples"):
            Categorical(class_dim=0)
        with pytest.raises(ValueError, match="no such axis"):
            Categorical(class_dim=-2).log_prob(torch.randn(S, B, C), torch.randint(0, C, (B,)))

    def test_an_unknown_mark_is_named(self):
        with pytest.raises(ValueError, match=r"from -100 to 2;.*ignore_index"):
            Categorical().log_prob(torch.zeros(S, 2, C), torch.tensor([2, -100]))


class TestScale:
    """free energy · N = −(log likelihood of all that is known − complexity)."""

    def posterior(self):
        torch.manual_seed(3)
        likelihood = Categorical(ignore_index=IGNORED)
        return bbh.methods.maximum_a_posteriori(nn.Linear(2, C), likelihood)

    def test_by_hand(self):
        inputs, targets = torch.randn(B, T, 2), some_ignored(B, T)
        targets[0] = IGNORED  # an example of which nothing is known
        posterior = self.posterior()
        energy = bbh.free_energy(posterior, (inputs, targets), num_data=B)
        logits = inputs @ posterior.sample(1)["weight"][0].T + posterior.sample(1)["bias"][0]
        known = targets != IGNORED
        total = F.cross_entropy(logits[known], targets[known], reduction="sum")
        torch.testing.assert_close(energy.total * B, total + energy.complexity)

    def test_training_is_that_without_the_ignored_positions(self):
        inputs, targets = torch.randn(B, T, 2), torch.randint(0, C, (B, T))
        padded = targets.clone()
        padded[:, 4:] = IGNORED

        def trained(inputs, targets):
            posterior = self.posterior()
            data = DataLoader(TensorDataset(inputs, targets), B)
            bbh.fit(posterior, data, epochs=3, progress=False, compare=False)
            return posterior.sample(1)["weight"]

        torch.testing.assert_close(trained(inputs, padded), trained(inputs[:, :4], targets[:, :4]))

    def test_an_example_without_targets_changes_the_objective_by_a_factor_only(self):
        inputs, targets = torch.randn(B, T, 2), torch.randint(0, C, (B, T))
        targets[1:] = IGNORED

        def gradient(inputs, targets):
            posterior = self.posterior()
            number = len(inputs)
            energy = bbh.free_energy(posterior, (inputs, targets), num_data=number)
            (energy.total * number).backward()
            return [one.grad for one in posterior.parameters()]

        torch.testing.assert_close(gradient(inputs, targets), gradient(inputs[:1], targets[:1]))


class TestWeights:
    LIKELIHOODS = (
        (Bernoulli(), (S, B, 2), torch.randint(0, 2, (B, 2)).float()),
        (Gaussian(0.5), (S, B, 2), torch.randn(B, 2)),
        (HeteroscedasticGaussian(), (S, B, 4), torch.randn(B, 2)),
        (Laplace(0.5), (S, B, 2), torch.randn(B, 2)),
        (NegativeBinomial(0.5), (S, B, 2), torch.randint(0, 9, (B, 2)).float()),
        (Poisson(), (S, B, 2), torch.randint(0, 9, (B, 2)).float()),
        (Quantile(0.3, 1.0), (S, B, 2), torch.randn(B, 2)),
        (StudentT(0.5), (S, B, 2), torch.randn(B, 2)),
    )
    NAMED = pytest.mark.parametrize(
        ("likelihood", "shape", "targets"),
        LIKELIHOODS,
        ids=[type(one).__name__ for one, _, _ in LIKELIHOODS],
    )

    @NAMED
    def test_one_for_every_target(self, likelihood, shape, targets):
        outputs = torch.randn(shape)
        each = likelihood.elementwise_log_prob(outputs, targets)
        weights = torch.tensor([[1.0, 2.0], [0.0, 1.0], [0.5, 0.5], [3.0, 0.0]])
        result = likelihood.log_prob(outputs, targets, weights)
        torch.testing.assert_close(result, (each * weights).sum(2))
        # One for every example.
        result = likelihood.log_prob(outputs, targets, weights[:, 0])
        torch.testing.assert_close(result, each.sum(2) * weights[:, 0])

    @NAMED
    def test_what_is_masked_may_be_anything(self, likelihood, shape, targets):
        """NaN where nothing was observed: neither values nor gradients notice."""
        outputs = torch.randn(shape, requires_grad=True)
        mask = torch.rand(B, 2) < 0.5
        mask[0] = torch.tensor([True, False])
        expected = torch.where(mask, likelihood.elementwise_log_prob(outputs, targets), 0).sum(2)
        (gradient,) = torch.autograd.grad(expected.sum(), outputs)
        spoiled = targets.masked_fill(~mask, math.nan)
        result = likelihood.log_prob(outputs, spoiled, mask)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(torch.autograd.grad(result.sum(), outputs)[0], gradient)

    def test_tokens(self):
        outputs, targets = torch.randn(S, B, T, C), some_ignored(B, T)
        weights = torch.rand(B, T)
        likelihood = Categorical(ignore_index=IGNORED)
        log_probs = outputs.log_softmax(-1)
        index = targets.clamp(min=0).expand(S, B, T).unsqueeze(-1)
        known = (targets != IGNORED).float() * weights
        expected = (log_probs.gather(-1, index).squeeze(-1) * known).sum(-1)
        torch.testing.assert_close(likelihood.log_prob(outputs, targets, weights), expected)

    def test_other_shapes_and_signs(self):
        outputs, targets = torch.randn(S, B, T, C), torch.randint(0, C, (B, T))
        with pytest.raises(ValueError, match=r"\(4,\) or \(4, 6\)"):
            Categorical().log_prob(outputs, targets, torch.ones(T))
        with pytest.raises(ValueError, match="down to -2"):
            Categorical().log_prob(outputs, targets, torch.full((B,), -2.0))

    def test_a_regression_with_missing_outputs(self):
        """Two outputs of which one is observed at a time: both are learned and judged."""
        inputs = torch.randn(200, 1)
        targets = torch.cat([3 * inputs + 100, -2 * inputs], 1)
        mask = torch.zeros(200, 2, dtype=torch.bool)
        mask[::2, 0] = mask[1::2, 1] = True
        targets[~mask] = math.nan
        network = nn.Linear(1, 2)
        posterior = bbh.methods.maximum_a_posteriori(network, Gaussian())
        data = DataLoader(TensorDataset(inputs, targets, mask), 100)
        history = bbh.fit(posterior, data, epochs=60, learning_rate=0.03, progress=False)
        assert history.comparison is not None
        assert history.comparison.constant is None
        found = bbh.evaluate(posterior, data)
        assert found["error"] < 0.3
        assert all(map(math.isfinite, found.values()))
        torch.testing.assert_close(
            bbh.predict(posterior, torch.ones(1, 1)).mean, torch.tensor([[103.0, -2.0]]), atol=0.5,
            rtol=0,
        )  # fmt: skip


class TestMetrics:
    def test_ignored_targets_are_left_out(self):
        outputs, targets = torch.randn(S, B, T, C), some_ignored(B, T)
        likelihood = Categorical(ignore_index=IGNORED)
        predictive = likelihood.predictive(likelihood.sums(outputs), S, None)
        known = targets != IGNORED
        probs, labels = predictive.mean[known], targets[known]
        found = likelihood.metrics(predictive, targets)
        assert found["nll"] == bbh.metrics.nll(probs, labels)
        assert found["error"] == bbh.metrics.error(probs, labels)
        assert found["ece"] == bbh.metrics.expected_calibration_error(probs, labels)
        flat = bbh.metrics.flatten_positions(predictive.mean, targets, IGNORED)
        assert torch.equal(flat[0], probs)
        assert torch.equal(flat[1], labels)
        weights = (torch.rand(B, T) < 0.7).float()
        found = likelihood.metrics(predictive, targets, weights)
        known &= weights > 0
        assert found["nll"] == bbh.metrics.nll(predictive.mean[known], targets[known])

    def test_nothing_is_known(self):
        likelihood = Categorical(ignore_index=IGNORED)
        predictive = likelihood.predictive(likelihood.sums(torch.randn(S, B, C)), S, None)
        with pytest.raises(ValueError, match="all targets are left out"):
            likelihood.metrics(predictive, torch.full((B,), IGNORED))
        with pytest.raises(ValueError, match="one class per position"):
            bbh.metrics.flatten_positions(torch.ones(2, C, 3), torch.zeros(2, 3).long())

    def test_constants_ignore_too(self):
        training, judged = torch.tensor([[0, 1, 1, IGNORED]]), torch.tensor([[1, IGNORED, 0, 1]])
        found = Categorical(ignore_index=IGNORED).constant(training, judged)
        assert found["nll"] == pytest.approx(-(2 * math.log(3 / 5) + math.log(2 / 5)) / 3)
        labels = Bernoulli(ignore_index=-1)
        found = labels.constant(torch.tensor([[1, -1], [1, 0]]), torch.tensor([[1, 0], [-1, 1]]))
        expected = -(math.log(3 / 4) + math.log(2 / 3) + math.log(1 / 3)) / 3
        assert found["nll"] == pytest.approx(expected)

    def test_masked_regression(self):
        likelihood, outputs = Gaussian(0.5), torch.randn(S, B, 2)
        targets, mask = torch.randn(B, 2), torch.tensor([[1, 0], [0, 0], [1, 1], [0, 1]]).bool()
        predictive = likelihood.predictive({}, S, outputs)
        found = likelihood.metrics(predictive, targets.masked_fill(~mask, math.nan), mask)
        density = torch.distributions.Normal(outputs, 0.5).log_prob(targets)
        per_draw = torch.where(mask, density, 0).sum(2)[:, mask.any(1)]
        nll = math.log(S) - per_draw.logsumexp(0).mean()
        assert found["nll"] == pytest.approx(nll.item(), rel=1e-5)
        away = (outputs.mean(0) - targets)[mask]
        assert found["error"] == pytest.approx(away.square().mean().sqrt().item(), rel=1e-5)
        expected = bbh.metrics.crps(outputs[:, mask], 0.5, targets[mask])
        assert found["crps"] == pytest.approx(expected, rel=1e-5)

    def test_evaluate_joins_batches_with_and_without_weights(self):
        posterior = bbh.methods.maximum_a_posteriori(nn.Linear(2, 1), Gaussian(1.0))
        inputs, targets = torch.randn(6, 2), torch.randn(6, 1)
        spoiled = targets.clone()
        spoiled[4:] = math.nan
        weights = torch.tensor([1.0, 0.0, 0.0])
        found = bbh.evaluate(
            posterior, [(inputs[:3], targets[:3]), (inputs[3:], spoiled[3:], weights)]
        )
        expected = bbh.evaluate(posterior, [(inputs[:4], targets[:4])])
        assert found == pytest.approx(expected)
        each = weights.unsqueeze(1)
        found = bbh.evaluate(
            posterior, [(inputs[:3], targets[:3]), (inputs[3:], spoiled[3:], each)]
        )
        assert found == pytest.approx(expected)


class TestSeveralLabels:
    def test_each_label_has_its_own_uncertainty_and_weight(self):
        likelihood = Bernoulli(positive_weight=[1.0, 2.0, 0.5], ignore_index=-1)
        outputs = torch.randn(S, B, 3).double()
        targets = torch.tensor([[1, 0, -1], [0, 1, 1], [-1, -1, -1], [1, 1, 0]])
        each = -F.binary_cross_entropy_with_logits(
            outputs,
            targets.clamp(min=0).double().expand_as(outputs),
            reduction="none",
            pos_weight=torch.tensor([1.0, 2.0, 0.5]).double(),
        )
        expected = torch.where(targets >= 0, each, 0).sum(2)
        torch.testing.assert_close(likelihood.log_prob(outputs, targets), expected)
        predictive = likelihood.predictive(likelihood.sums(outputs), S, None)
        assert predictive.mean.shape == predictive.mutual_information.shape == (B, 3)

    def test_the_sum_of_informations_bounds_that_of_the_labels_together(self):
        """All 2³ outcomes by brute force, which is what the docstring claims."""
        likelihood, outputs = Bernoulli(), 2 * torch.randn(S, 1, 3).double()
        predictive = likelihood.predictive(likelihood.sums(outputs), S, None)
        outcomes = torch.cartesian_prod(*[torch.tensor([0, 1])] * 3)
        log_probs = torch.stack([likelihood.log_prob(outputs, one[None]) for one in outcomes])
        joint = torch.special.entr(log_probs.exp().mean(1)).sum()
        inner = torch.special.entr(log_probs.exp()).sum(0).mean()
        torch.testing.assert_close(predictive.expected_entropy.sum(), inner)
        assert joint - inner < predictive.mutual_information.sum()

    def test_settings(self):
        with pytest.raises(ValueError, match="3 entries"):
            Bernoulli([1.0, 1.0, 1.0]).log_prob(torch.zeros(S, B, 2), torch.zeros(B, 2))
        with pytest.raises(ValueError, match="are no and yes"):
            Bernoulli(ignore_index=1)
        with pytest.raises(ValueError, match="ignore_index"):
            Bernoulli().log_prob(torch.zeros(S, B, 2), torch.full((B, 2), -1))


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.last = nn.Conv2d(4, 3, 1)

    def forward(self, images):
        return self.last(self.first(images).relu())


def test_segmentation_from_training_to_files(tmp_path):
    labels = torch.zeros(24, 8, 8).long()
    labels[:, :4], labels[:, :, 4:] = 1, 2
    images = (labels - 1.0 + 0.1 * torch.randn(24, 8, 8)).unsqueeze(1)
    hidden = labels.clone()
    labels[torch.rand(24, 8, 8) < 0.3] = 255
    labels[0] = 255
    likelihood = Categorical(ignore_index=255, class_dim=1)
    posterior = bbh.methods.maximum_a_posteriori(Segmenter(), likelihood)
    data = DataLoader(TensorDataset(images, labels), 8, shuffle=True)
    history = bbh.fit(posterior, data, epochs=12, learning_rate=0.02, progress=False)
    assert history.comparison is not None
    assert history.comparison.constant is not None
    assert history.comparison.posterior["nll"] < history.comparison.constant["nll"]
    bbh.save(posterior, tmp_path / "file")
    read = bbh.load(tmp_path / "file", Segmenter())
    assert (read.likelihood.ignore_index, read.likelihood.class_dim) == (255, 1)
    predictive = bbh.predict(read, images)
    assert predictive.mean.shape == (24, 8, 8, 3)
    # Pixels that training never saw are predicted like all others.
    assert (predictive.labels == hidden).double().mean() > 0.9
    attacked = bbh.attacks.FGSM(bounds=None)(posterior, images, labels, 0.1)
    assert attacked.loss.mean() > attacked.clean_loss.mean()
    assert torch.equal(attacked.inputs[0], images[0])  # nothing is known about it


LEARNED = {
    "poisson": (Poisson(), 1, torch.randint(0, 9, (20, 1))),
    "negative binomial": (NegativeBinomial(), 1, torch.randint(0, 9, (20, 1))),
    "network": (NegativeBinomial(from_network=True), 2, torch.randint(0, 9, (20, 1))),
    "student": (StudentT(df=None), 1, torch.randn(20, 1)),
    "laplace": (Laplace(), 1, torch.randn(20, 1)),
    "quantile": (Quantile(0.9), 1, torch.randn(20, 1)),
    "ordinal": (Ordinal(4), 1, torch.randint(0, 4, (20, 1))),
}


@pytest.mark.parametrize("name", LEARNED)
def test_files_hold_what_was_learned_beside_the_weights(name, tmp_path):
    likelihood, outputs, targets = LEARNED[name]
    inputs = torch.randn(20, 2)
    # A prior with the name of a likelihood, in the same file.
    prior = bbh.priors.StudentT(3.0, 1.0)
    posterior = bbh.methods.maximum_a_posteriori(nn.Linear(2, outputs), likelihood, prior)
    bbh.fit(
        posterior, DataLoader(TensorDataset(inputs, targets), 10), epochs=2, learning_rate=0.1,
        progress=False,
    )  # fmt: skip
    bbh.save(posterior, tmp_path / "file")
    read = bbh.load(tmp_path / "file", nn.Linear(2, outputs))
    assert type(read.likelihood) is type(likelihood)
    assert repr(read.likelihood) == repr(posterior.likelihood) != repr(likelihood)
    assert read.prior == prior
    assert bbh.evaluate(read, [(inputs, targets)]) == bbh.evaluate(posterior, [(inputs, targets)])
    with pytest.raises((TypeError, ValueError), match=r"one|neither"):
        bbh.inspect.functional_diversity(posterior, inputs)
