"""Student's t and Laplace noise against SciPy, and data with outliers."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import brentq
from torch import nn

import bbh
from bbh import residuals
from bbh.likelihoods import Gaussian, Laplace, Standardisation, StudentT
from bbh.predictive import RegressionPredictive
from bbh.standardisation import robust_standardisation_of, standardisation_of

S, B = 3, 5
FAMILIES = {
    "normal": (residuals.Normal(), stats.norm()),
    "laplace": (residuals.Laplace(), stats.laplace()),
    "t": (residuals.StudentT(torch.tensor(3.5)), stats.t(3.5)),
}


class TestResiduals:
    @pytest.mark.parametrize("name", FAMILIES)
    def test_they_are_scipys(self, name):
        ours, theirs = FAMILIES[name]
        values = torch.linspace(-30, 30, 401, dtype=torch.float64)
        levels = (1e-9, 0.01, 0.3, 0.5, 0.77, 1 - 1e-9)
        for mine, known in (
            (ours.log_density(values), theirs.logpdf(values.numpy())),
            (ours.distribution_function(values), theirs.cdf(values.numpy())),
            (torch.tensor([ours.quantile(p) for p in levels]).double(), theirs.ppf(levels)),
        ):
            torch.testing.assert_close(mine, torch.as_tensor(known), rtol=1e-6, atol=1e-12)
        assert ours.std == pytest.approx(theirs.std())

    @pytest.mark.parametrize("name", FAMILIES)
    def test_samples_follow_them(self, name):
        ours, theirs = FAMILIES[name]
        drawn = ours.sample_like(torch.empty(20_000))
        assert stats.kstest(drawn.numpy(), theirs.cdf).pvalue > 1e-3

    def test_degrees_of_freedom_have_a_gradient(self):
        df = torch.tensor(3.5, dtype=torch.float64, requires_grad=True)
        values = torch.linspace(-5, 5, 7, dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda one: residuals.StudentT(one).log_density(values), df)

    def test_heavy_tails_have_no_standard_deviation(self):
        assert residuals.StudentT(torch.tensor(1.5)).std == math.inf


class TestLikelihoods:
    @pytest.mark.parametrize(
        ("likelihood", "known"),
        [
            (StudentT(0.7, df=2.5), stats.t(2.5, scale=0.7)),
            (StudentT(30.0), stats.t(4, scale=30.0)),
            (Laplace(0.2), stats.laplace(scale=0.2)),
        ],
    )
    def test_log_prob_is_scipys(self, likelihood, known):
        outputs, targets = torch.randn(S, B, 2), 5 * torch.randn(B, 2)
        expected = known.logpdf((targets - outputs).double().numpy()).sum(-1)
        result = likelihood.log_prob(outputs, targets).double()
        torch.testing.assert_close(result, torch.as_tensor(expected), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("likelihood", [StudentT(), StudentT(df=None), Laplace()])
    def test_in_other_units(self, likelihood):
        """a·y + b has a density smaller by a, and predictions of a·prediction + b."""
        outputs, targets = torch.randn(S, B, 1), torch.randn(B, 1)
        likelihood.fit_targets(targets)
        here = likelihood.log_prob(outputs, targets)
        first = likelihood.predictive({}, S, outputs)
        likelihood.fit_targets(100 * targets + 7)
        there = likelihood.log_prob(outputs, 100 * targets + 7)
        second = likelihood.predictive({}, S, outputs)
        torch.testing.assert_close(there, here - math.log(100), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            second.interval(0.9)[1], 100 * first.interval(0.9)[1] + 7, rtol=1e-4, atol=1e-3
        )
        torch.testing.assert_close(second.total_std, 100 * first.total_std, rtol=1e-4, atol=1e-3)

    def test_quantiles_of_a_mixture(self):
        locs, scales = 3 * torch.randn(4, 2).double(), torch.rand(4, 2).double() + 0.1
        predictive = RegressionPredictive(
            locs.mean(0), 4, locs, scales, residuals.StudentT(torch.tensor(1.2))
        )
        levels = (1e-4, 0.3, 0.99)
        for column in range(2):
            parts = stats.t(1.2, locs[:, column].numpy(), scales[:, column].numpy())
            for level, value in zip(levels, predictive.quantiles(levels)[:, column], strict=True):
                expected = brentq(lambda x, p=parts, q=level: p.cdf(x).mean() - q, -1e6, 1e6)
                assert value.item() == pytest.approx(expected, rel=1e-6, abs=1e-6)
        assert predictive.total_std.isinf().all()

    def test_degrees_of_freedom_are_checked_and_shown(self):
        for wrong in (1.0, 0.0, -3.0, math.inf, math.nan):
            with pytest.raises(ValueError, match="degrees of freedom"):
                StudentT(df=wrong)
        assert repr(StudentT(2.0)) == "StudentT(df=4, scale=2, learned=False, standardise=False)"
        assert "df=4 (learned)" in repr(StudentT(df=None))
        assert len(list(StudentT(df=None).parameters())) == 2
        with pytest.raises(ValueError, match="needs the noise's scale"):
            Laplace(learned=False)

    def test_constants_are_the_most_probable_ones(self):
        training = torch.as_tensor(stats.t(3, 5, 2).rvs(400, random_state=0))
        judged = torch.tensor([4.0, 9.0]).double()
        known = stats.t(*stats.t.fit(training.numpy(), f0=4))
        expected = -known.logpdf(judged.numpy()).mean()
        assert StudentT().constant(training, judged)["nll"] == pytest.approx(expected, rel=1e-4)
        known = stats.laplace(*stats.laplace.fit(training.numpy()))
        expected = -known.logpdf(judged.numpy()).mean()
        assert Laplace().constant(training, judged)["nll"] == pytest.approx(expected, rel=1e-2)


class TestRobustStandardisation:
    def test_gaussian_targets_have_nearly_their_mean_and_standard_deviation(self):
        targets = 5 + 3 * torch.randn(20_000, 2)
        found = robust_standardisation_of([(targets[:7_000], None), (targets[7_000:], None)])
        usual = standardisation_of([(targets, None)])
        assert found.loc == pytest.approx(usual.loc, abs=0.1)
        assert found.scale == pytest.approx(usual.scale, rel=0.03)

    def test_a_third_of_outliers_does_not_carry_it_away(self):
        targets = torch.randn(300)
        targets[::3] = 1e8
        found = robust_standardisation_of([(targets, None)])
        assert abs(found.loc) < 1
        assert found.scale < 3

    def test_weights_count_like_copies_and_zeros_not_at_all(self):
        targets = torch.tensor([1.0, 5.0, 2.0, math.nan])
        weights = torch.tensor([2.0, 1.0, 3.0, 0.0])
        copies = torch.tensor([1.0, 1.0, 5.0, 2.0, 2.0, 2.0])
        for learn in (robust_standardisation_of, standardisation_of):
            assert learn([(targets, weights)]) == learn([(copies, None)])

    def test_single_targets_may_be_missing(self):
        targets = torch.tensor([[1.0, math.nan], [3.0, 10.0], [math.nan, 30.0]])
        found = standardisation_of([(targets, ~targets.isnan())])
        assert found == Standardisation((2.0, 20.0), (1.0, 10.0))

    def test_mostly_equal_targets(self):
        targets = torch.tensor([2.0, 2.0, 2.0, 8.0])
        found = robust_standardisation_of([(targets, None)])
        assert found == Standardisation(2.0, float(targets.double().std(correction=0)))


def slope_found(likelihood, inputs, targets, steps=120):
    posterior = bbh.methods.maximum_a_posteriori(
        nn.Linear(1, 1), likelihood, bbh.priors.Normal(100.0)
    )
    posterior.likelihood.fit_targets(targets)
    optimizer = torch.optim.Adam(posterior.parameters(), lr=0.1)
    step = bbh.TrainingStep(posterior, optimizer, num_data=len(targets))
    for _ in range(steps):
        step((inputs, targets))
    ends = bbh.predict(posterior, torch.tensor([[0.0], [1.0]])).mean
    return float(ends[1] - ends[0]), posterior.likelihood


def test_outliers_move_a_gaussian_and_not_students_t():
    inputs = torch.rand(300, 1)
    targets = 1000 + 50 * inputs + 2 * torch.randn_like(inputs)
    wrong = (inputs > 0.7) & (torch.rand_like(inputs) < 0.5)
    targets[wrong] -= 400
    assert 30 < wrong.sum() < 70
    gaussian, _ = slope_found(Gaussian(), inputs, targets)
    student, likelihood = slope_found(StudentT(df=2.0), inputs, targets)
    laplace, _ = slope_found(Laplace(), inputs, targets)
    assert gaussian < -100
    assert student == pytest.approx(50, abs=3)
    assert laplace == pytest.approx(50, abs=25)
    assert float(likelihood.split(torch.zeros(1))[1].detach()) < 6


def test_learned_degrees_of_freedom_tell_heavy_tails_from_light_ones():
    inputs = torch.randn(600, 1)
    found = {}
    for name, noise in (("heavy", stats.t(2.5)), ("light", stats.norm())):
        values = np.asarray(noise.rvs((600, 1), random_state=1))
        targets = inputs + torch.as_tensor(values, dtype=torch.float32)
        _, likelihood = slope_found(StudentT(df=None), inputs, targets)
        found[name] = float(likelihood.degrees_of_freedom.detach())
    assert 2 < found["heavy"] < 4
    assert found["light"] > 6
