"""How figures look: colours and markers, fonts, an empty figure, a legend that hides nothing.

Matplotlib is imported where it is used, because the library works without it.
"""

import math
import textwrap
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colour-blind-safe set; its yellow is darkened to be seen on white.
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#B8A900", "#0072B2", "#D55E00", "#CC79A7")
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#777777"
MARKERS = "osD^vP*Xh<"
# Figures are drawn at the width of a phone or a column, so that text keeps its size there.
WIDTH, HEIGHT = 4.3, 3.5
# A curve has at most so many points: a screen shows no more.
MAX_POINTS = 200
# Most letters of a legend's entry: on the whole width, and on half of it.
_LINE, _HALF_A_LINE = 54, 27
# What all figures of the library have in common.
PLAIN: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with Matplotlib: the same figure on every machine
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "axes.formatter.limits": (-3, 5),
}
GRID: dict[Any, Any] = PLAIN | {
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.handlelength": 2,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 1,
    "lines.linewidth": 1.5,
    "svg.fonttype": "none",  # text stays text: a third of the size of its outlines
    "svg.hashsalt": "bbh",  # the same data give the same file
}


@dataclass(frozen=True)
class Style:
    """Colour and marker of one row, the same in all figures: markers tell lines without colours."""

    colour: str
    marker: str


def style(index: int) -> Style:
    """The style of a row that has none of its own. The first is blue, as most have one row only."""
    shifted = (index + COLOURS.index(BLUE)) % len(COLOURS)
    return Style(COLOURS[shifted], MARKERS[index % len(MARKERS)])


@contextmanager
def figure_style(settings: Mapping[Any, Any] = GRID) -> Generator[None]:
    """Applies these Matplotlib settings, and restores the caller's afterwards."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ImportError(
            "figures need Matplotlib: pip install 'bayes-by-hypernet[plots]'."
        ) from error
    with mpl.rc_context():
        mpl.rcdefaults()  # a user's own style would change the figure
        mpl.rcParams.update(settings)
        yield


def new_axes(
    width: float = WIDTH,
    height: float = HEIGHT,
    bottom: float = 0.5,
    **labels: str | tuple[float, float],
) -> "tuple[Figure, Axes]":
    """An empty figure, made without pyplot: no window, no global state."""
    from bbh.plots.shown import ShownFigure

    # Fixed margins, in inches: laying them out anew would take half of a report's time.
    lines = str(labels.get("title", "")).count("\n") + ("title" in labels)
    left, right, top = 0.78, 0.12, 0.2 + 0.18 * lines
    box = (left, bottom, width - left - right, height - top - bottom)
    figure = ShownFigure(figsize=(width, height))
    axes = figure.add_axes(
        (box[0] / width, box[1] / height, box[2] / width, box[3] / height),
    )
    axes.set(**labels)
    return figure, axes


def legend_below(figure: "Figure", axes: "Axes") -> None:
    """The legend under the plot, where it hides no data; the figure grows by its height."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    (width, height), box = figure.get_size_inches(), axes.get_position()
    columns = 2 if max(map(len, labels)) <= _HALF_A_LINE else 1
    labels = [textwrap.fill(label, _LINE) for label in labels]
    broken = sum(label.count("\n") for label in labels)  # lines of one entry are closer together
    extra = 0.19 * math.ceil(len(labels) / columns) + 0.14 * broken + 0.1
    grown = height + extra
    bottom, tall = (box.y0 * height + extra) / grown, box.height * height / grown
    figure.set_size_inches(width, grown)
    axes.set_position((box.x0, bottom, box.width, tall))
    figure.legend(handles, labels, loc="lower center", ncols=columns, borderaxespad=0.1)


@contextmanager
def drawn_in(axes: "Axes | None") -> "Generator[Axes]":
    """The axes to draw in: the given ones as they are, or new ones with a legend in the end.

    Given axes keep the caller's settings of Matplotlib, and get a legend inside.
    """
    if axes is not None:
        yield axes
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
        return
    with figure_style():
        figure, made = new_axes()
        yield made
        legend_below(figure, made)


def figure_of(axes: "Axes") -> "Figure":
    """The whole figure that the axes are part of, also if they are in a part of it."""
    return axes.figure.figure  # a figure's own figure is itself


def thin(values: np.ndarray) -> np.ndarray:
    """At most ``MAX_POINTS`` entries, ends included."""
    if len(values) <= MAX_POINTS:
        return values
    return values[np.linspace(0, len(values) - 1, MAX_POINTS).round().astype(int)]


def marked(look: Style, x: np.ndarray) -> dict[str, Any]:
    """Colour and a few markers, so that curves can be told apart without colours."""
    places = (np.linspace(0.15, 0.85, 3) * (len(x) - 1)).round().astype(int)
    return {
        "color": look.colour,
        "marker": look.marker,
        "markersize": 5,
        "markevery": places.tolist(),
    }
