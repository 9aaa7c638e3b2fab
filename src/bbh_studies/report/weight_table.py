"""Results of inspecting posteriors over weights, as a table for documents."""

import json
from functools import reduce
from pathlib import Path
from typing import Any

from bbh.inspect.inspection import FILE_NAME
from bbh_studies.report.pipe_table import pipe_table
from bbh_studies.run.leftovers import INSPECTION_NAME
from bbh_studies.studies import row_title

# Rows of the table: title → place of the number in an inspection's file, and its format.
_NUMBERS = {
    "weights of the first layer with more than one mode (dip test, p < 0.05)": (
        ("bimodality", "share_below_0.05"),
        "{:.0%}",
    ),
    "pairs of them correlated beyond ±0.5": (("correlation", "share_beyond_0.5"), "{:.0%}"),
    "all weights, excess kurtosis: median": (("excess_kurtosis", "quantiles", 1), "{:.2f}"),
    "standard deviation: median": (("spread", "quantiles", 1), "{:.3f}"),
    "effective dimension": (("effective_dimension", "estimate"), "{:,.1f}"),
    "the same if no two weights were correlated": (
        ("effective_dimension", "independent"),
        "{:,.0f}",
    ),
    "two draws predict other classes": (("diversity", "disagreement"), "{:.1%}"),
}


def inspection_table(results: Path, study: str, preset: str, *variants: str) -> str:
    """Inspected runs of seed 0 side by side, in Markdown; empty where one is missing."""
    folders = [results / study / preset / f"{name}-0" / INSPECTION_NAME for name in variants]
    if not all((folder / FILE_NAME).exists() for folder in folders):
        return ""
    contents = [json.loads((folder / FILE_NAME).read_text()) for folder in folders]
    rows: list[list[str]] = []
    for title, (keys, words) in _NUMBERS.items():
        values = [_at(content, keys) for content in contents]
        rows.append([title, *("" if one is None else words.format(one) for one in values)])
    signs = [[sign["name"] for sign in content["signs_of_collapse"]] for content in contents]
    rows.append(["signs of collapse", *(", ".join(names) or "none" for names in signs)])
    return pipe_table(["", *(row_title(study, one) for one in variants)], rows)


def _at(content: Any, keys: tuple[str | int, ...]) -> float | None:
    """The number at a place in the file; None if there is none, as for classes in regression."""
    return reduce(lambda part, key: None if part is None else part[key], keys, content)
