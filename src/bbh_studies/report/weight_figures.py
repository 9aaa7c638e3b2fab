"""What posteriors over weights look like, for runs that were inspected."""

import base64
import json
from pathlib import Path
from typing import Any

from bbh.inspect.inspection import FILE_NAME
from bbh_studies.record import RecordError
from bbh_studies.report.collect import Group
from bbh_studies.report.figures import Picture
from bbh_studies.run.leftovers import INSPECTION_NAME

_FIGURES = {"correlation": "Correlations of the first layer", "marginals": "Its first weights"}


def inspections(group: Group) -> list[list[Picture]]:
    """Heat maps of all rows side by side, and below them their marginals."""
    found = [
        (runs.full_title, runs.first.path.parent / INSPECTION_NAME)
        for runs in group.rows
        if runs.first.path is not None
    ]
    found = [(title, folder) for title, folder in found if (folder / FILE_NAME).exists()]
    pictures = [
        [
            Picture(
                _uri(folder / f"{name}.png"),
                f"{title}: {_words(folder / FILE_NAME)}" if name == "correlation" else title,
                f"{what}, {title}.",
            )
            for title, folder in found
            if (folder / f"{name}.png").exists()
        ]
        for name, what in _FIGURES.items()
    ]
    return [row for row in pictures if row]


def _words(path: Path) -> str:
    """The numbers for the caption; those without a value are left out."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        modes, pairs = content["bimodality"], content["correlation"]
        dimension, functions = content["effective_dimension"], content["diversity"] or {}
        parts = (
            _part(pairs["share_beyond_0.5"], "{:.0%} of pairs correlated beyond ±0.5")
            + _part(pairs["independent_share"], " (independent Gaussians: {:.1%})"),
            _part(
                modes["share_below_0.05"], "{:.0%} of weights with more than one mode (p < 0.05)"
            ),
            _part(dimension["estimate"], "effective dimension {:,.1f}")
            + _part(dimension["independent"], " (without correlations {:,.0f})"),
            _part(functions.get("disagreement"), "two draws differ in {:.1%} of their classes"),
            *(f"sign of collapse: {sign['name']}" for sign in content["signs_of_collapse"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} is no inspection of this version ({error}).") from error
    return "; ".join(part for part in parts if part) + "."


def _part(value: float | None, words: str) -> str:
    return "" if value is None else words.format(value)


def _uri(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
