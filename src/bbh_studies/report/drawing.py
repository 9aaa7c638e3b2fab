"""What figures of all methods look like, and how they become part of a page."""

import base64
import io
import re
from collections.abc import Sequence
from itertools import count

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from bbh.plots.canvas import COLOURS, MARKERS, Style
from bbh_studies.report.collect import Runs

_DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.5), (1, 1), (5, 1, 1, 1), (8, 2), (2, 2))
# Colour and marker of each method: the same in all figures, so that readers learn them once.
_METHODS = {
    "map": ("#000000", "o"),
    "ensemble": ("#E69F00", "s"),
    "bbb": ("#009E73", "^"),
    "dropout": ("#56B4E9", "D"),
    "mnf": ("#CC79A7", "v"),
    "bbh": ("#0072B2", "*"),
    "mixture": ("#B8A900", "X"),
    # References, of which a study has one.
    "nuts": ("#D55E00", "P"),
    "hmc": ("#D55E00", "P"),
}
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


def styles(rows: Sequence[Runs]) -> dict[Runs, Style]:
    """One style per row: a method's own, or the next free one."""
    taken = [_METHODS[runs.variant] for runs in rows if runs.variant in _METHODS]
    free = iter(
        pair
        for i in count()
        if (pair := (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)])) not in taken
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
    return COLOURS[index % len(COLOURS)], (0, dash or None)


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
