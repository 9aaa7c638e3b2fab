"""Quantiles and moments of Gaussian mixtures."""

import math

import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor

from bbh.predictive import ClassPredictive, RegressionPredictive

LEVELS = (1e-6, 0.025, 0.3, 0.5, 0.9, 1 - 1e-6)


def mixture(locs: Tensor, scales: Tensor) -> RegressionPredictive:
    return RegressionPredictive(locs.mean(0), len(locs), locs, scales)


@pytest.mark.parametrize(("loc", "scale"), [(0.0, 1.0), (-3e6, 2.0), (5.0, 1e-9), (1.0, 1e9)])
def test_quantiles_of_one_gaussian(loc: float, scale: float):
    locs = torch.full((7, 2), loc, dtype=torch.float64)
    result = mixture(locs, torch.full_like(locs, scale)).quantiles(LEVELS)
    expected = torch.tensor(norm.ppf(LEVELS, loc, scale)).unsqueeze(1).expand(-1, 2)
    # To 10⁻⁹ of the scale, or to the last digits of the location.
    torch.testing.assert_close(result, expected, rtol=1e-14, atol=1e-9 * scale)


def test_quantiles_of_a_mixture_invert_its_distribution_function():
    locs = 3 * torch.randn(5, 4, 2, dtype=torch.float64)
    scales = torch.rand(5, 4, 2, dtype=torch.float64) + 0.01
    result = mixture(locs, scales).quantiles(LEVELS)
    assert result.shape == (6, 4, 2)
    for row in range(4):
        for output in range(2):
            loc, scale = locs[:, row, output].numpy(), scales[:, row, output].numpy()
            for level, value in zip(LEVELS, result[:, row, output].tolist(), strict=True):

                def excess(point: float, level=level, loc=loc, scale=scale) -> float:
                    return norm.cdf(point, loc, scale).mean() - level

                assert value == pytest.approx(brentq(excess, -100, 100, xtol=1e-13), abs=1e-8)


def test_interval_of_two_distant_draws_spans_both():
    locs = torch.tensor([[-10.0], [10.0]])
    lower, upper = mixture(locs, torch.full_like(locs, 0.1)).interval(0.9)
    # 5 % of all mass is the lowest tenth of the lower draw.
    expected = 10 + 0.1 * norm.ppf(0.9)
    assert lower.item() == pytest.approx(-expected, abs=1e-5)
    assert upper.item() == pytest.approx(expected, abs=1e-5)


def test_moments_are_those_of_the_mixture():
    locs, scales = torch.randn(4, 3).double(), torch.rand(4, 3).double() + 0.1
    predictive = mixture(locs, scales)
    grid = torch.linspace(-12, 12, 100_001, dtype=torch.float64)
    for column in range(3):
        density = torch.distributions.Normal(locs[:, column], scales[:, column])
        weight = density.log_prob(grid.unsqueeze(1)).exp().mean(1)
        mean = torch.trapezoid(weight * grid, grid)
        std = torch.trapezoid(weight * (grid - mean).square(), grid).sqrt()
        torch.testing.assert_close(predictive.mean[column], mean)
        torch.testing.assert_close(predictive.total_std[column], std)
    torch.testing.assert_close(predictive.epistemic_std, locs.var(0, correction=0).sqrt())


def test_a_single_draw_has_no_epistemic_spread():
    predictive = mixture(torch.randn(1, 3), torch.ones(1, 3))
    assert torch.equal(predictive.epistemic_std, torch.zeros(3))
    torch.testing.assert_close(predictive.total_std, torch.ones(3))


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, math.nan])
def test_levels_lie_inside(level: float):
    predictive = mixture(torch.zeros(2, 1), torch.ones(2, 1))
    with pytest.raises(ValueError, match="strictly"):
        predictive.quantiles([0.5, level])
    with pytest.raises(ValueError, match="strictly"):
        predictive.interval(level)


def test_mutual_information_is_never_negative():
    # Rounding may leave the entropy of the mean below the mean entropy.
    one = torch.tensor([0.5])
    predictive = ClassPredictive(one, 1, one, one + 1e-7, one, torch.tensor([1]))
    assert predictive.mutual_information.item() == 0
