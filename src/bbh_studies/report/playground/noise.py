"""Bands of the toy regression for several noise levels, trained beforehand and kept here.

Training them takes minutes for each level, too long for a demonstration. They are those of the
records in ``results``: `make pictures` writes the file anew, and a test compares the two.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bbh_studies.problems.toy.data import OUTSIDE, load_toy
from bbh_studies.report.collect import Group
from bbh_studies.report.toy_figures import with_functions
from bbh_studies.studies import row_title

FILE = Path(__file__).parent / "noise_bands.json"
_STUDY, _PRESET, _SEED = "toy", "corrected", 0
_NUM_POINTS = 61


def bands_of(groups: Sequence[Group]) -> dict[str, Any]:
    """Mean and standard deviation of every row's functions at every noise level, on one grid.

    Args:
        groups: All groups of a report; those of the toy study with the preset ``corrected`` count.
    """
    grid = np.linspace(-OUTSIDE, OUTSIDE, _NUM_POINTS)
    rows: dict[str, dict[str, Any]] = {}
    for group in groups:
        if (group.study, group.preset) != (_STUDY, _PRESET):
            continue
        for runs, style, arrays in with_functions(group):
            record = runs.first.record
            if record.seed != _SEED or runs.own:
                continue
            curve = {
                name: np.interp(grid, arrays["grid"], arrays[name]).round(1).tolist()
                for name in ("mean", "std")
            }
            row = rows.setdefault(runs.variant, {"colour": style.colour, "bands": {}})
            row["bands"][f"{record.config['noise_scale']:g}"] = curve
    levels = sorted({level for row in rows.values() for level in row["bands"]}, key=float)
    return {"levels": [float(one) for one in levels], "grid": grid.round(3).tolist(), "rows": rows}


def noise_card() -> dict[str, Any]:
    """The stored bands with titles, and the data points for any noise level.

    A point is at x³ plus the noise level times a number that is the same for all levels.
    """
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    data = load_toy(1.0)
    inputs = data.train_inputs[:, 0].double()
    errors = data.train_targets[:, 0].double() - inputs**3
    rows = [{"title": row_title(_STUDY, name)} | row for name, row in stored["rows"].items()]
    points = {"inputs": _rounded(inputs.tolist()), "errors": _rounded(errors.tolist())}
    return stored | {"rows": rows} | points


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(one, 3) for one in values]
