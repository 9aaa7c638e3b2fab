"""The default estimator of Bayes by Hypernet: its bias, and what it makes of weights without data.

The first version of the library took the third neighbour of five draws. If a weight has two modes,
that neighbour often lies in the other one, and the weight looks wide. The estimate rewarded two
modes. Tests show that the default does not, and that they would notice.
"""

import inspect
import logging
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import bbh
from bbh.divergences import NearestNeighbourEntropy
from bbh.divergences.neighbours import sum_log_distances_plain
from bbh.priors import Normal
from bbh_studies.bench.targets import TARGETS, Target

NUM_SAMPLES = inspect.signature(bbh.methods.bayes_by_hypernet).parameters["num_samples"].default


def bias(target: Target, neighbours: int | None, num_samples: int, columns: int = 60_000) -> float:
    """Mean estimate minus the true KL: known to 0.003, for N(0, 5²) to 0.023."""
    draws = {"weight": target.draws(num_samples, columns)}
    divergence = NearestNeighbourEntropy(neighbours)
    total = divergence(draws, {"weight": torch.Size([columns])}, Normal(1.0)).complexity
    return total.item() / columns - target.kl


@pytest.mark.parametrize("name", TARGETS)
def test_at_the_default_number_of_draws_the_mean_error_is_small(name: str):
    assert NUM_SAMPLES == 10
    assert abs(bias(TARGETS[name], None, NUM_SAMPLES)) <= 0.15


@pytest.mark.parametrize(
    ("name", "estimate"),
    [("two_modes", 0.40), ("two_wide_modes", 0.01), ("two_sharp_modes", 0.98), ("uniform", 0.73)],
)
def test_the_third_of_five_neighbours_rewards_several_modes(name: str, estimate: float):
    target = TARGETS[name]
    error = bias(target, neighbours=3, num_samples=5)
    assert target.kl + error == pytest.approx(estimate, abs=0.02)
    assert error < -0.15


# --- Numbers of draws and neighbours that cannot work -----------------------------------------


def make_posterior(
    divergence: NearestNeighbourEntropy, num_samples: int, network: nn.Module | None = None
) -> bbh.Posterior[Any]:
    return bbh.methods.bayes_by_hypernet(
        network or nn.Linear(4, 3),
        bbh.likelihoods.Categorical(),
        Normal(1.0),
        divergence=divergence,
        num_samples=num_samples,
    )


@pytest.mark.parametrize(
    ("neighbours", "num_samples", "enough"), [(3, 5, 14), (3, 10, 14), (2, 5, 10), (None, 5, 6)]
)
def test_too_few_draws_for_the_neighbours_are_warned_about(
    caplog, neighbours: int | None, num_samples: int, enough: int
):
    with caplog.at_level(logging.WARNING, logger="bbh"):
        make_posterior(NearestNeighbourEntropy(neighbours), num_samples)
    (record,) = caplog.records
    assert f"with {num_samples} samples and {neighbours or 1} neighbours" in record.getMessage()
    assert "the neighbour lies in another mode" in record.getMessage()
    assert f"Take {enough} samples or more (num_samples=)" in record.getMessage()
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="bbh"):
        make_posterior(NearestNeighbourEntropy(neighbours), enough)
    assert not caplog.records


@pytest.mark.parametrize(("neighbours", "num_samples"), [(3, 3), (3, 2), (2, 2), (None, 1)])
def test_no_more_neighbours_than_other_draws(neighbours: int | None, num_samples: int):
    with pytest.raises(ValueError, match=f"at least {(neighbours or 1) + 1} weight samples"):
        make_posterior(NearestNeighbourEntropy(neighbours), num_samples)


# --- Minimised without data -------------------------------------------------------------------


class Seen(NamedTuple):
    """What the draws of a posterior look like: averages over its weights.

    Attributes:
        distance: Kolmogorov distance of a weight's draws to N(0, 1).
        kurtosis: The excess kurtosis, without its sign.
        estimate: The estimated KL in nats.
    """

    distance: float
    kurtosis: float
    estimate: float


def minimised(neighbours: int | None, num_samples: int, steps: int, network: nn.Module) -> Seen:
    """Trains on the complexity alone, with a falling learning rate, and looks at the draws."""
    divergence = NearestNeighbourEntropy(neighbours)
    posterior = make_posterior(divergence, num_samples, network)
    weights, prior = posterior.weights, posterior.prior
    optimizer = torch.optim.Adam(weights.parameters(), lr=1e-2, fused=True)
    cooling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        weights.cost(posterior.sample(num_samples), prior).complexity.backward()
        optimizer.step()
        cooling.step()
    with torch.no_grad():
        # The estimate varies most, since weights made from the same noise vary together.
        draws = torch.cat([flat(posterior.sample(2000)) for _ in range(20)])
        by_step = torch.cat(list(draws.view(-1, num_samples, draws.shape[1])), dim=1)
        shapes = {"weight": by_step.shape[1:]}
        estimate = divergence({"weight": by_step}, shapes, prior).complexity / by_step.shape[1]
        return Seen(*distance_to_prior(draws[:20_000].double()), estimate.item())


def distance_to_prior(draws: Tensor) -> tuple[float, float]:
    """Distance and kurtosis; with 20,000 draws the distance of the prior itself is 0.006."""
    count = len(draws)
    below = torch.arange(count)[:, None] / count
    probability = torch.special.ndtr(draws.sort(dim=0).values)
    largest = torch.maximum(probability - below, below + 1 / count - probability).amax(0)
    standard = (draws - draws.mean(0)) / draws.std(0)
    kurtosis = standard.pow(4).mean(0) - 3
    return largest.mean().item(), kurtosis.abs().mean().item()


def flat(samples: bbh.Samples) -> Tensor:
    return torch.cat([value.flatten(1) for value in samples.values()], dim=1)


def test_distances_to_the_prior_are_scipys():
    draws = 0.3 + 1.2 * torch.randn(500, 3, dtype=torch.float64)
    columns = draws.T.numpy()
    distance, kurtosis = distance_to_prior(draws)
    expected = np.mean([scipy.stats.kstest(one, "norm").statistic for one in columns])
    assert distance == pytest.approx(expected)
    expected = np.abs(scipy.stats.kurtosis(columns, axis=1)).mean()
    assert kurtosis == pytest.approx(expected, abs=0.02)  # divides by n, not by n − 1


@pytest.mark.slow
def test_without_data_weights_return_to_the_prior(monkeypatch):
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")  # half the time
    network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    seen = minimised(None, NUM_SAMPLES, 4000, network)
    assert seen.distance <= 0.035
    assert seen.kurtosis <= 0.8
    assert abs(seen.estimate) <= 0.06


@pytest.fixture
def _sorting(monkeypatch):
    """For few weights, sorting is the fastest way to the same number."""
    monkeypatch.setattr("bbh.divergences.entropy.sum_log_distances", sum_log_distances_plain)


@pytest.mark.usefixtures("_sorting")
def test_without_data_few_weights_come_near_the_prior():
    # So few steps are not the whole way; the slow test above goes on.
    seen = minimised(None, NUM_SAMPLES, 600, nn.Linear(4, 3))
    assert seen.distance <= 0.065
    assert seen.kurtosis <= 0.8
    assert 0 < seen.estimate <= 0.1


@pytest.mark.usefixtures("_sorting")
def test_without_data_the_third_of_five_neighbours_leaves_the_prior():
    seen = minimised(3, 5, 600, nn.Linear(4, 3))
    assert seen.distance > 0.065
    assert seen.kurtosis > 0.8
    assert seen.estimate < 0
