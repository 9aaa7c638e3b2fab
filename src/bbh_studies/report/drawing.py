"""How figures look, and how they become part of a page."""

import base64
import io
import math
import re
import textwrap
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from bbh_studies.report.collect import Runs

# Okabe and Ito's colour-blind-safe set; its yellow is darkened to be seen on white.
_COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#B8A900", "#0072B2", "#D55E00", "#CC79A7")
_DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.5), (1, 1), (5, 1, 1, 1), (8, 2), (2, 2))
_MARKERS = "osD^vP*Xh<"
# Colour and marker of each method: the same in all figures, so that readers learn them once.
_METHODS = {
    "map": ("#000000", "o"),
    "ensemble": ("#E69F00", "s"),
    "bbb": ("#009E73", "^"),
    "dropout": ("#56B4E9", "D"),
    "mnf": ("#CC79A7", "v"),
    "bbh": ("#0072B2", "*"),
    "mixture": ("#B8A900", "X"),
    "nuts": ("#D55E00", "P"),
}
# Figures are drawn at the width of a phone, so that text keeps its size there.
WIDTH, HEIGHT = 4.3, 3.5
MAX_POINTS = 200
# Most letters of a legend's entry: on the whole width, and on half of it.
_LINE, _HALF_A_LINE = 54, 27
# Replacements that make an SVG half as long and keep its looks.
_SHORTER = tuple(
    (re.compile(pattern, re.DOTALL), replacement)
    for pattern, replacement in (
        (r"^.*?(?=<svg)", ""),
        (r"<metadata>.*?</metadata>", ""),
        (r" font-family: 'DejaVu Sans';", ""),
        # DejaVu is wide: labels laid out with it have room in any other font.
        (r"<style type=\"text/css\">", r"\g<0>text{font-family:'DejaVu Sans',Verdana,sans-serif}"),
        (r" transform=\"rotate\(-0 [^\"]*\"", ""),
        (r"\s*\n\s*", "\n"),
    )
)
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with Matplotlib: the same page on every machine
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 2,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 1,
    "lines.linewidth": 1.5,
    "svg.fonttype": "none",  # text stays text: a third of the size of its outlines
    "svg.hashsalt": "bbh",  # the same records give the same page
    "axes.formatter.limits": (-3, 5),
}


@dataclass(frozen=True)
class Style:
    """Colour and marker of one row in all figures of a study."""

    colour: str
    marker: str


def styles(rows: Sequence[Runs]) -> dict[Runs, Style]:
    """One style per row: a method's own, or the next free one."""
    taken = [_METHODS[runs.variant] for runs in rows if runs.variant in _METHODS]
    free = iter(
        pair
        for i in count()
        if (pair := (_COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)])) not in taken
    )
    seen: set[str] = set()
    found: dict[Runs, Style] = {}
    for runs in rows:
        # The same method with other settings must look different.
        own = runs.variant in _METHODS and runs.variant not in seen
        found[runs] = Style(*(_METHODS[runs.variant] if own else next(free)))
        seen.add(runs.variant)
    return found


def class_style(index: int) -> tuple[str, tuple[float, tuple[float, ...] | None]]:
    """Colour and dash of a class."""
    dash = _DASHES[(index // 2) % len(_DASHES)]
    return _COLOURS[index % len(_COLOURS)], (0, dash or None)


@contextmanager
def figure_style() -> Generator[None]:
    """Matplotlib's settings for all figures here; the caller's are restored afterwards."""
    with mpl.rc_context():
        mpl.rcdefaults()  # a user's own style would change the page
        mpl.rcParams.update(_STYLE)
        yield


def new_axes(
    width: float = WIDTH,
    height: float = HEIGHT,
    bottom: float = 0.5,
    **labels: str | tuple[float, float],
) -> tuple[Figure, Axes]:
    """An empty figure, made without pyplot: no window, no global state."""
    # Fixed margins, in inches: laying them out anew would take half of a report's time.
    lines = str(labels.get("title", "")).count("\n") + ("title" in labels)
    left, right, top = 0.78, 0.12, 0.2 + 0.18 * lines
    box = (left, bottom, width - left - right, height - top - bottom)
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes(
        (box[0] / width, box[1] / height, box[2] / width, box[3] / height),
    )
    axes.set(**labels)
    return figure, axes


def legend_below(figure: Figure, axes: Axes) -> None:
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


def thin(values: np.ndarray) -> np.ndarray:
    """At most ``MAX_POINTS`` entries, ends included: a screen shows no more."""
    if len(values) <= MAX_POINTS:
        return values
    return values[np.linspace(0, len(values) - 1, MAX_POINTS).round().astype(int)]


def svg_uri(figure: Figure) -> str:
    """The figure as a data URI, an address that contains the whole image."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    for pattern, replacement in _SHORTER:
        text = pattern.sub(replacement, text)
    # Coordinates in tenths of a point are finer than what a screen shows.
    text = re.sub(r'(?<= d=")[^"]+', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), text)
    return f"data:image/svg+xml;base64,{base64.b64encode(text.encode()).decode()}"


def png_uri(image: np.ndarray) -> str:
    """A small image of bytes, grey [H, W] or coloured [H, W, 3], as a data URI."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
