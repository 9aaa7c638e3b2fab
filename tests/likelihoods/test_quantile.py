"""Quantile regression: the loss, what is learned, and what is refused."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_pinball_loss
from torch import nn

import bbh
from bbh.likelihoods import Quantile
from bbh.predictive import QuantilePredictive

LEVELS = (0.05, 0.5, 0.9)


@pytest.mark.parametrize("level", LEVELS)
def test_the_density_is_one_and_its_quantile_is_the_output(level: float):
    grid = torch.linspace(-400, 400, 800_001, dtype=torch.float64).unsqueeze(1)
    outputs = torch.full_like(grid, 1.3).unsqueeze(0)
    density = Quantile(level, scale=0.7).double().log_prob(outputs, grid)[0].exp()
    grid = grid.squeeze(1)
    assert torch.trapezoid(density, grid).item() == pytest.approx(1, abs=1e-5)
    below = grid <= 1.3
    assert torch.trapezoid(density[below], grid[below]).item() == pytest.approx(level, abs=1e-4)


@pytest.mark.parametrize("level", LEVELS)
def test_the_most_probable_output_is_the_samples_quantile(level: float):
    targets = torch.as_tensor(np.random.default_rng(0).exponential(size=501)).float()
    candidates = targets.sort().values
    likelihood = Quantile(level, scale=1.0)
    totals = likelihood.log_prob(candidates[:, None].expand(-1, 501), targets).sum(1)
    best = candidates[totals.argmax()].item()
    assert best == pytest.approx(np.quantile(targets.numpy(), level), abs=0.02)


@pytest.mark.parametrize("level", LEVELS)
def test_the_right_share_of_new_targets_is_below(level: float):
    """Noise that is skewed and grows with the input, far from asymmetric Laplace noise."""

    def simulate(number):
        inputs = torch.rand(number, 1)
        noise = torch.empty_like(inputs).exponential_()
        return inputs, 500 + 100 * inputs + (1 + 40 * inputs) * noise

    inputs, targets = simulate(2000)
    posterior = bbh.methods.maximum_a_posteriori(nn.Linear(1, 1), Quantile(level))
    posterior.likelihood.fit_targets(targets)
    optimizer = torch.optim.Adam(posterior.parameters(), lr=0.1)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150)
    step = bbh.TrainingStep(posterior, optimizer, num_data=2000)
    for _ in range(150):
        step((inputs, targets))
        rate.step()
    new_inputs, new_targets = simulate(20_000)
    found = bbh.evaluate(posterior, [(new_inputs, new_targets)])
    assert found["below"] == pytest.approx(level, abs=0.03)
    # Also where the noise is large, and not only on average.
    upper = bbh.predict(posterior, new_inputs).mean
    far = new_inputs > 0.5
    assert float((new_targets <= upper)[far].double().mean()) == pytest.approx(level, abs=0.04)


def test_pinball_loss_is_scikit_learns():
    predicted, targets = torch.randn(50), torch.randn(50)
    for level in LEVELS:
        expected = mean_pinball_loss(targets.numpy(), predicted.numpy(), alpha=level)
        assert bbh.metrics.pinball(predicted, targets, level) == pytest.approx(expected, rel=1e-5)
    assert bbh.metrics.mae(predicted, targets) == pytest.approx(
        2 * bbh.metrics.pinball(predicted, targets, 0.5), rel=1e-6
    )
    with pytest.raises(ValueError, match="between 0 and 1"):
        bbh.metrics.pinball(predicted, targets, 1.0)


def test_the_prediction_is_a_quantile_and_claims_nothing_else():
    locs = torch.randn(200, 3, 1)
    predictive = QuantilePredictive(locs.mean(0), 200, 0.9, locs, torch.ones_like(locs))
    for name in ("interval", "quantiles", "total_std", "aleatoric_std", "entropy"):
        assert not hasattr(predictive, name)
        with pytest.raises(AttributeError, match=r"Quantile\(0\.05\)"):
            getattr(predictive, name)
    lower, upper = predictive.band(0.8)
    expected = torch.quantile(locs, torch.tensor([0.1, 0.9]), dim=0)
    torch.testing.assert_close(torch.stack([lower, upper]), expected)
    torch.testing.assert_close(predictive.epistemic_std, locs.std(0, correction=0))
    assert "quantile 0.9" in repr(predictive)
    one = QuantilePredictive(locs[0], 1, 0.9, locs[:1], torch.ones(1, 3, 1))
    assert torch.equal(one.band(0.5)[0], locs[0])


def test_the_constant_prediction_is_the_quantile_of_the_training_targets():
    training, judged = torch.arange(1000.0), torch.tensor([0.0, 950.0])
    found = Quantile(0.9).constant(training, judged)
    assert found["error"] == pytest.approx((0.1 * 900 + 0.9 * 50) / 2)
    assert found["below"] == 0.5


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 90.0, math.nan])
def test_levels_lie_inside(level: float):
    with pytest.raises(ValueError, match="between 0 and 1"):
        Quantile(level)


def test_several_levels_need_several_posteriors():
    with pytest.raises(TypeError, match="level"):
        Quantile([0.1, 0.9])
