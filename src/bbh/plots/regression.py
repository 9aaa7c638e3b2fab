"""Figures of regressions with one input: bands around the mean, and functions of single draws."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bbh import checks
from bbh.decisions.predictions import Array, real
from bbh.plots.canvas import BLUE, drawn_in, figure_of, thin
from bbh.predictive import RegressionPredictive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TRUTH = "#444444"
Points = tuple[NDArray[Any], NDArray[Any]]  # inputs and targets


def bands(
    inputs: Array,
    predictive: RegressionPredictive,
    *,
    data: tuple[Array, Array] | None = None,
    truth: Array | None = None,
    axes: "Axes | None" = None,
) -> "Figure":
    """The mean, and bands of one, two and three standard deviations of a new observation.

    Args:
        inputs: A grid of inputs [B] or [B, 1], in any order.
        predictive: The prediction for this grid, with one output.
        data: Inputs and targets of examples to show as points.
        truth: The true function on the grid, if it is known.
        axes: Where to draw; None makes a figure.
    """
    grid, order = _grid(inputs, predictive)
    mean, std = (
        _column("predictive", one)[order] for one in (predictive.mean, predictive.total_std)
    )
    with drawn_in(axes) as place:
        place.set(xlabel="x", ylabel="y")
        draw_bands(place, grid, mean, std, truth=_ordered(truth, order), data=_points(data))
        # Only the legend says what the bands are.
        place.plot([], [], color=BLUE, label="mean")
        place.fill_between([], [], [], color=BLUE, alpha=0.3, label="1, 2, 3 standard deviations")
        _key(place, data is not None, truth is not None)
    return figure_of(place)


def functions(
    inputs: Array,
    predictive: RegressionPredictive,
    *,
    num_draws: int = 20,
    data: tuple[Array, Array] | None = None,
    truth: Array | None = None,
    axes: "Axes | None" = None,
) -> "Figure":
    """The functions of single weight draws: what the posterior finds plausible, without the noise.

    Args:
        inputs: A grid of inputs [B] or [B, 1], in any order.
        predictive: The prediction for this grid, with one output.
        num_draws: How many draws to show, at most.
        data: Inputs and targets of examples to show as points.
        truth: The true function on the grid, if it is known.
        axes: Where to draw; None makes a figure.
    """
    checks.whole("num_draws", num_draws, 1, "show at least one draw")
    grid, order = _grid(inputs, predictive)
    shown = predictive.locs[:num_draws]
    with drawn_in(axes) as place:
        place.set(xlabel="x", ylabel="y")
        for index, draw in enumerate(shown):
            label = f"{len(shown)} draws" if index == 0 else None
            look: dict[str, Any] = {"color": BLUE, "linewidth": 0.8, "alpha": 0.6}
            place.plot(grid, _column("draws", draw)[order], label=label, **look)
        _truth_and_data(place, grid, _ordered(truth, order), _points(data))
        _key(place, data is not None, truth is not None)
        place.set_xlim(grid[0], grid[-1])
    return figure_of(place)


def draw_bands(
    axes: "Axes",
    grid: NDArray[Any],
    mean: NDArray[Any],
    std: NDArray[Any],
    *,
    colour: str = BLUE,
    truth: NDArray[Any] | None = None,
    data: Points | None = None,
) -> None:
    """Draws mean and bands over a sorted grid, the true curve and the data, without a legend."""
    kept = thin(np.arange(len(grid)))
    grid, mean, std = (np.asarray(one, dtype=float)[kept] for one in (grid, mean, std))
    for width, alpha in ((1, 0.35), (2, 0.25), (3, 0.18)):
        band: dict[str, Any] = {"color": colour, "alpha": alpha, "linewidth": 0}
        axes.fill_between(grid, mean - width * std, mean + width * std, **band)
    axes.plot(grid, mean, color=colour)
    shown = None if truth is None else np.asarray(truth, dtype=float)[kept]
    _truth_and_data(axes, grid, shown, data)
    axes.set_xlim(grid[0], grid[-1])


def _truth_and_data(
    axes: "Axes", grid: NDArray[Any], truth: NDArray[Any] | None, data: Points | None
) -> None:
    if truth is not None:
        axes.plot(grid, truth, "--", color=_TRUTH)
    if data is not None:
        axes.plot(data[0].ravel(), data[1].ravel(), "k.", markersize=5)


def _key(axes: "Axes", with_data: bool, with_truth: bool) -> None:
    if with_truth:
        axes.plot([], [], "--", color=_TRUTH, label="truth")
    if with_data:
        axes.plot([], [], "k.", markersize=5, label="data")


def _grid(inputs: Array, predictive: RegressionPredictive) -> tuple[NDArray[Any], NDArray[Any]]:
    """The inputs in ascending order, and this order."""
    checks.instance("predictive", predictive, RegressionPredictive, "pass that of bbh.predict")
    grid = _column("inputs", inputs)
    if len(grid) != len(predictive.mean):
        raise ValueError(
            f"inputs: {len(grid)} of them, and predictions for {len(predictive.mean)}; pass the "
            "inputs that were predicted."
        )
    order = grid.argsort(kind="stable")
    return grid[order], order


def _ordered(truth: Array | None, order: NDArray[Any]) -> NDArray[Any] | None:
    return None if truth is None else _column("truth", truth)[order]


def _points(data: tuple[Array, Array] | None) -> Points | None:
    if data is None:
        return None
    inputs, targets = (_column("data", one) for one in data)
    return inputs, targets


def _column(name: str, values: Array) -> NDArray[Any]:
    """One number per example; raises if there are several."""
    known = real(name, values)
    if known.ndim == 0 or known[0].numel() != 1:
        raise ValueError(
            f"{name}: shape {list(known.shape)}, and a figure has one input and one output: "
            "choose a column, and predict along it with the others fixed."
        )
    return known.flatten().numpy()
