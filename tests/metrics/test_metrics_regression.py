"""Regression metrics against SciPy, torchmetrics, integration and simulation."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from scipy import integrate, stats
from sklearn.metrics import root_mean_squared_error
from torch import Tensor
from torchmetrics.functional.regression import continuous_ranked_probability_score

from bbh.metrics import crps, gaussian_mixture_nll, interval_coverage, rmse


def _mixture(seed: int = 0, shape: tuple[int, ...] = (5, 7)) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    locs = torch.randn(shape, generator=generator, dtype=torch.float64)
    scales = 0.1 + torch.rand(shape, generator=generator, dtype=torch.float64)
    return locs, scales, 2 * torch.randn(shape[1:], generator=generator, dtype=torch.float64)


def _integrated_crps(locs: Tensor, scales: Tensor, target: float) -> float:
    """The definition, ∫ (F(x) − 1[x ≥ y])² dx, for one element."""

    def cdf(x: float) -> float:
        return float(stats.norm.cdf(x, locs, scales).mean())

    below, _ = integrate.quad(lambda x: cdf(x) ** 2, -30, target, epsabs=1e-11, limit=200)
    above, _ = integrate.quad(lambda x: (1 - cdf(x)) ** 2, target, 30, epsabs=1e-11, limit=200)
    return below + above


def test_rmse_against_scikit_learn():
    locs, _, targets = _mixture(shape=(1, 7, 3))
    expected = math.sqrt(np.mean((locs[0] - targets).numpy() ** 2))
    assert rmse(locs[0], targets) == pytest.approx(expected, rel=1e-12)
    one_output = root_mean_squared_error(targets[:, 0], locs[0, :, 0])
    assert rmse(locs[0, :, 0], targets[:, 0]) == pytest.approx(one_output, rel=1e-12)
    assert rmse(targets, targets) == 0


def test_nll_of_one_draw_is_the_gaussian_nll():
    locs, scales, targets = _mixture(shape=(1, 7))
    expected = -stats.norm.logpdf(targets, locs[0], scales[0]).mean()
    assert gaussian_mixture_nll(locs, scales, targets) == pytest.approx(expected, rel=1e-12)


def test_nll_of_a_mixture_against_scipy():
    locs, scales, targets = _mixture()
    expected = -np.log(stats.norm.pdf(targets, locs, scales).mean(0)).mean()
    assert gaussian_mixture_nll(locs, scales, targets) == pytest.approx(expected, rel=1e-12)


def test_nll_multiplies_the_outputs_inside_the_mixture():
    locs, scales, targets = _mixture(shape=(4, 6, 2, 3))
    densities = stats.norm.pdf(targets, locs, scales).reshape(4, 6, 6)
    inside = -np.log(densities.prod(-1).mean(0)).mean()
    outside = -np.log(densities.mean(0)).sum(-1).mean()
    assert gaussian_mixture_nll(locs, scales, targets) == pytest.approx(inside, rel=1e-12)
    assert inside != pytest.approx(outside, rel=1e-2)


def test_nll_far_from_every_draw_is_finite():
    nll = gaussian_mixture_nll(torch.zeros(3, 1), 0.01, torch.tensor([10.0]))
    assert nll == pytest.approx(-stats.norm.logpdf(10, 0, 0.01), rel=1e-6)


@pytest.mark.parametrize("metric", [gaussian_mixture_nll, crps])
def test_scales_broadcast(metric: Callable[..., float]):
    locs, _, targets = _mixture(shape=(4, 6, 2))
    for scales in (0.5, torch.tensor(0.5), torch.full((2,), 0.5), torch.full((4, 1, 1), 0.5)):
        full = metric(locs, torch.full_like(locs, 0.5), targets)
        assert metric(locs, scales, targets) == pytest.approx(full, rel=1e-14)


def test_interval_coverage_counts_closed_intervals():
    lower, upper = torch.zeros(4, 1), torch.ones(4, 1)
    targets = torch.tensor([[0.0], [1.0], [1.1], [-0.1]])
    assert interval_coverage(lower, upper, targets) == 0.5
    assert interval_coverage(lower - math.inf, upper, targets) == 0.75
    assert interval_coverage(lower - math.inf, upper + math.inf, targets) == 1


def test_interval_coverage_of_the_true_quantiles_is_their_level():
    targets = torch.randn(40_000, generator=torch.Generator().manual_seed(0))
    bound = torch.full_like(targets, stats.norm.ppf(0.95))
    assert interval_coverage(-bound, bound, targets) == pytest.approx(0.9, abs=0.005)


def test_crps_of_one_gaussian_is_the_closed_form():
    locs, scales, targets = _mixture(shape=(1, 7))
    z = (targets - locs[0]) / scales[0]
    phi, cdf = stats.norm.pdf(z), stats.norm.cdf(z)
    # Gneiting & Raftery (2007), equation 20 with its sign reversed.
    expected = scales[0].numpy() * (z.numpy() * (2 * cdf - 1) + 2 * phi - 1 / math.sqrt(math.pi))
    assert crps(locs, scales, targets) == pytest.approx(expected.mean(), rel=1e-12)


def test_crps_of_a_mixture_against_its_integral():
    locs, scales, targets = _mixture(shape=(3, 4))
    integrals = [_integrated_crps(locs[:, b], scales[:, b], float(targets[b])) for b in range(4)]
    assert crps(locs, scales, targets) == pytest.approx(np.mean(integrals), abs=1e-8)


def test_crps_with_some_scales_zero_against_its_integral():
    locs = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    scales = torch.tensor([[0.0], [0.5]], dtype=torch.float64)
    narrow = _integrated_crps(locs[:, 0], scales[:, 0] + torch.tensor([1e-4, 0.0]), 0.3)
    assert crps(locs, scales, torch.tensor([0.3], dtype=torch.float64)) == pytest.approx(
        narrow, abs=1e-4
    )


def test_crps_against_simulation():
    locs, scales, targets = _mixture(shape=(3, 1))
    generator = np.random.default_rng(0)
    component = generator.integers(3, size=(2, 400_000))
    first, second = generator.normal(locs[:, 0].numpy()[component], scales[:, 0].numpy()[component])
    expected = np.abs(first - float(targets)).mean() - np.abs(first - second).mean() / 2
    assert crps(locs, scales, targets) == pytest.approx(expected, abs=5e-3)


def test_crps_at_scale_zero_is_that_of_the_ensemble():
    locs, _, targets = _mixture(shape=(9, 11))
    pairs = (locs[:, None] - locs).abs().mean((0, 1))
    brute_force = ((locs - targets).abs().mean(0) - pairs / 2).mean().item()
    assert crps(locs, 0.0, targets) == pytest.approx(brute_force, rel=1e-12)
    theirs = continuous_ranked_probability_score(locs.T, targets)
    assert crps(locs, 0.0, targets) == pytest.approx(theirs.item(), rel=1e-12)


def test_crps_of_a_point_is_the_absolute_error():
    assert crps(torch.tensor([[1.0, 2.0]]), 0.0, torch.tensor([4.0, 2.0])) == 1.5
    assert crps(torch.full((3, 1), 2.0), 0.0, torch.tensor([2.0])) == 0


def test_crps_averages_over_outputs():
    locs, scales, targets = _mixture(shape=(4, 6, 2))
    single = [crps(locs[..., o], scales[..., o], targets[..., o]) for o in range(2)]
    assert crps(locs, scales, targets) == pytest.approx(np.mean(single), rel=1e-12)


@settings(deadline=None)
@given(
    locs=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6),
    scale=st.sampled_from([0.0, 1e-320, 1e-30, 1e-3, 1.0, 1e3]),
    target=st.floats(-1e3, 1e3),
)
def test_crps_is_finite_nonnegative_and_below_the_mean_absolute_error(
    locs: list[float], scale: float, target: float
):
    stacked = torch.tensor(locs, dtype=torch.float64).unsqueeze(-1)
    score = crps(stacked, scale, torch.tensor([target], dtype=torch.float64))
    bound = np.abs(np.array(locs) - target).mean() + scale * math.sqrt(2 / math.pi)
    assert -1e-9 <= score <= bound + 1e-9


def test_bad_input():
    locs, scales, targets = _mixture()
    with pytest.raises(ValueError, match="mean: 1 of 1 values are NaN"):
        rmse(torch.tensor([math.nan]), torch.zeros(1))
    with pytest.raises((ValueError, TypeCheckError)):
        rmse(torch.zeros(2), torch.zeros(2, 1))
    with pytest.raises(ValueError, match="lower: above upper"):
        interval_coverage(torch.ones(1), torch.zeros(1), torch.zeros(1))
    with pytest.raises(ValueError, match="upper: 1 of 1 values are NaN"):
        interval_coverage(torch.ones(1), torch.tensor([math.nan]), torch.zeros(1))
    with pytest.raises(ValueError, match="scales: zero"):
        gaussian_mixture_nll(locs, 0.0, targets)
    for metric in (gaussian_mixture_nll, crps):
        with pytest.raises(ValueError, match="scales: negative"):
            metric(locs, -scales, targets)
        with pytest.raises(ValueError, match=r"scales: shape \[3\] does not broadcast"):
            metric(locs, torch.ones(3), targets)
        with pytest.raises(ValueError, match="locs: empty"):
            metric(torch.zeros(0, 7), 1.0, torch.zeros(7))
        with pytest.raises((ValueError, TypeCheckError)):
            metric(locs[0], scales[0], targets)
        with pytest.raises((ValueError, TypeCheckError)):
            metric(locs, scales, targets.unsqueeze(-1))
