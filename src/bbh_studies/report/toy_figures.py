"""Panels of the toy regression: the functions that each method finds plausible for x³."""

import numpy as np
from matplotlib.axes import Axes

from bbh.plots import canvas
from bbh.plots.canvas import Style
from bbh.plots.regression import draw_bands
from bbh_studies.columns import METRICS
from bbh_studies.report import drawing
from bbh_studies.report.collect import Group, Runs
from bbh_studies.report.figures import Drawn, Picture, with_arrays

_NEEDED = ("grid", "mean", "std")
# The paper cuts its panels at ±100; posteriors that are wide outside the data need more room.
_LIMITS = {"legacy": 100.0}
_LIMIT = 250.0


def panels(group: Group) -> list[Picture]:
    """One panel for each row that has functions on a grid."""
    with canvas.figure_style():
        return [_panel(*one, group.preset) for one in with_functions(group)]


def with_functions(group: Group) -> list[Drawn]:
    """The rows that have functions on a grid, with their styles and arrays."""
    return [one for one in with_arrays(group, *_NEEDED) if one[2]["grid"].ndim == 1]


def draw_functions(
    axes: Axes, style: Style, arrays: dict[str, np.ndarray], limit: float = _LIMIT
) -> None:
    """Mean and bands of one, two and three standard deviations, the true curve and the data.

    Args:
        axes: Where to draw.
        style: Gives the colour.
        arrays: What ``measures.figure_arrays`` made.
        limit: The y axis reaches as far up and down.
    """
    data = {"train_x", "train_y"} <= arrays.keys()
    draw_bands(
        axes,
        arrays["grid"],
        arrays["mean"],
        arrays["std"],
        colour=style.colour,
        truth=arrays.get("truth"),
        data=(arrays["train_x"], arrays["train_y"]) if data else None,
    )
    grid = arrays["grid"]
    axes.set(ylim=(-limit, limit), xlim=(float(np.min(grid)), float(np.max(grid))))


def _panel(runs: Runs, style: Style, arrays: dict[str, np.ndarray], preset: str) -> Picture:
    values = runs.first.record.metrics
    shown = [
        f"{METRICS[name].title} {METRICS[name].format(values[name])}"
        for name in ("rmse", "distance_to_nuts")
        if name in values
    ]
    title = "\n".join([runs.label, *([", ".join(shown)] if shown else [])])
    figure, axes = canvas.new_axes(3.6, 3.1, title=title, xlabel="x", ylabel="y")
    draw_functions(axes, style, arrays, _LIMITS.get(preset, _LIMIT))
    return Picture(
        drawing.svg_uri(figure),
        "",
        f"{runs.label} on the toy regression: mean, bands of one, two and three standard "
        f"deviations, the true curve and the data. {', '.join(shown)}",
    )
