"""Metrics of a posterior over the toy function, and the arrays for its figure."""

import numpy as np
import torch
from torch import Tensor

from bbh import metrics
from bbh.predictive import RegressionPredictive
from bbh_studies.problems.toy.data import INSIDE, ToyData

QUANTILE_LEVELS = (0.025, 0.16, 0.25, 0.5, 0.75, 0.84, 0.975)
# Ends of the central 95 %.
_CENTRAL = (0.025, 0.975)
_SHOWN_DRAWS = 20


def measure(predictive: RegressionPredictive, data: ToyData) -> dict[str, float]:
    """Metrics of functions and of predicted observations, inside and outside the data's range.

    Args:
        predictive: Predictions for grid, test inputs and outer inputs, in this order.
        data: The true curve and the observations to compare with.
    """
    grid, test, outer = _parts(predictive, data)
    inside = _inside(data)
    mean, truth = grid.mean, data.truth
    covered = _covered(grid, truth)
    return {
        "rmse": metrics.rmse(mean, truth),
        "rmse_inside": metrics.rmse(mean[inside], truth[inside]),
        "nll": metrics.gaussian_mixture_nll(test.locs, test.scales, data.test_targets),
        "nll_outside": metrics.gaussian_mixture_nll(outer.locs, outer.scales, data.outer_targets),
        "coverage_inside": float(covered[inside].float().mean()),
        "coverage_outside": float(covered[~inside].float().mean()),
        "observation_coverage_inside": observation_coverage(test, data.test_targets),
        "observation_coverage_outside": observation_coverage(outer, data.outer_targets),
    }


def distances(
    predictive: RegressionPredictive, exact: RegressionPredictive, data: ToyData
) -> dict[str, float]:
    """Wasserstein-1 distance between two posteriors over functions, averaged over the grid."""
    draws, exact_draws = (_functions(_parts(one, data)[0]) for one in (predictive, exact))
    distance = wasserstein(draws, exact_draws)
    return {
        "distance_to_nuts": float(distance.mean()),
        "distance_to_nuts_inside": float(distance[_inside(data).numpy()].mean()),
    }


def wasserstein(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Exact W₁ = ∫ |F − G| between two samples, [S, points] and [T, points], at every point.

    >>> wasserstein(np.array([[0.0], [2.0]]), np.array([[3.0]]))
    array([2.])
    """
    both = np.concatenate([first, second])
    order = both.argsort(axis=0)
    ordered = np.take_along_axis(both, order, axis=0)
    of_first = order < len(first)
    difference = of_first.cumsum(0) / len(first) - (~of_first).cumsum(0) / len(second)
    return (np.abs(difference[:-1]) * np.diff(ordered, axis=0)).sum(0)


def observation_coverage(predictive: RegressionPredictive, targets: Tensor) -> float:
    """Share of observations within the central 95 % of the predictive mixture, noise included."""
    standardised = (targets - predictive.locs) / predictive.scales
    level = torch.special.ndtr(standardised.double()).mean(0)
    low, high = _CENTRAL
    return float(((low <= level) & (level <= high)).float().mean())


def figure_arrays(predictive: RegressionPredictive, data: ToyData) -> dict[str, np.ndarray]:
    """The arrays for the figure; spread and quantiles are those of functions, without noise."""
    functions = _functions(_parts(predictive, data)[0])
    arrays = {
        "grid": data.grid[:, 0].numpy(),
        "truth": data.truth[:, 0].numpy(),
        "mean": functions.mean(0),
        "std": functions.std(0),
        "quantiles": np.quantile(functions, QUANTILE_LEVELS, axis=0),
        "quantile_levels": np.array(QUANTILE_LEVELS),
        "draws": functions[:_SHOWN_DRAWS],
        "train_x": data.train_inputs[:, 0].numpy(),
        "train_y": data.train_targets[:, 0].numpy(),
    }
    return {name: values.astype(np.float32) for name, values in arrays.items()}


def _parts(predictive: RegressionPredictive, data: ToyData) -> list[RegressionPredictive]:
    sizes = [len(one) for one in (data.grid, data.test_inputs, data.outer_inputs)]
    parts = zip(predictive.locs.split(sizes, 1), predictive.scales.split(sizes, 1), strict=True)
    return [
        RegressionPredictive(locs.mean(0), predictive.num_samples, locs, scales)
        for locs, scales in parts
    ]


def _functions(grid: RegressionPredictive) -> np.ndarray:
    return grid.locs.squeeze(-1).double().numpy()


def _covered(grid: RegressionPredictive, truth: Tensor) -> Tensor:
    """Where the truth lies within the central 95 % of the functions, observation noise aside."""
    lower, upper = grid.locs.squeeze(-1).quantile(torch.tensor(_CENTRAL), dim=0)
    true = truth.squeeze(-1)
    return (lower <= true) & (true <= upper)


def _inside(data: ToyData) -> Tensor:
    return data.grid.squeeze(-1).abs() <= INSIDE
