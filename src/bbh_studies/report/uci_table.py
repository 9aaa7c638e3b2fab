"""The UCI study in a few tables: a column per set, a row per method, published numbers below."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bbh_studies.columns import METRICS
from bbh_studies.record import Record
from bbh_studies.report.collect import Entry, Group, group, problem_of
from bbh_studies.report.pipe_table import pipe_table
from bbh_studies.report.tables import tied
from bbh_studies.statistic import LEVEL, Statistic

UCI = "uci"
# Metric → how its table is introduced. The first one ranks the methods.
_TABLES = {
    "nll": "Negative log likelihood of the test part, in nats, on the targets' own scale",
    "test_rmse": "Root mean squared error, in the targets' units",
    "crps": "Continuous ranked probability score, in the targets' units",
    "coverage_95": "Share of test targets within the central 95 % of their prediction",
}
CONSTANT = "Constant predictor"


@dataclass(frozen=True)
class SetResults:
    """The results of all methods on one set, on the splits that every method has.

    Attributes:
        name: Name of the set.
        splits: The splits.
        records: Title of the method → its records, one per split.
    """

    name: str
    splits: tuple[int, ...]
    records: Mapping[str, Sequence[Record]]

    def statistics(self, metric: str) -> dict[str, Statistic]:
        """Mean and spread over splits for every method, and for the constant predictor."""
        found = {
            title: Statistic.of([one.metrics[metric] for one in records])
            for title, records in self.records.items()
        }
        constant = f"constant_{metric.removeprefix('test_')}"
        first = next(iter(self.records.values()))
        if constant in first[0].metrics:
            found[CONSTANT] = Statistic.of([one.metrics[constant] for one in first])
        return found


def uci_table(records: Sequence[Record], preset: str, *problem: str) -> str:
    """All tables of the study in Markdown; empty without records.

    Args:
        records: All records; those of other studies, presets and problems are left out.
        preset: Name of the preset.
        problem: Further settings of the problem, such as ``split=validation``.
    """
    sets, known = set_results(records, preset, *problem), published_uci()
    if not sets:
        return ""
    texts = [
        f"{words}:\n\n" + _one_table(metric, sets, {} if problem else known)
        for metric, words in _TABLES.items()
    ]
    splits = ", ".join(f"{one.name} {len(one.splits)}" for one in sets)
    note = (
        "Mean ± standard error over splits. Bold: best of ours, or not told apart from it by "
        f"Welch's t-test (p ≥ {LEVEL:g}), which does not use that methods have the same splits; "
        "with one split there is no test. Mean rank: of the mean NLL among our methods, averaged "
        f"over sets; 1 is best. Splits: {splits}.\n"
    )
    return "\n".join([*texts, note])


def set_results(records: Sequence[Record], preset: str, *problem: str) -> list[SetResults]:
    """The results on every set, in the order in which publications list the sets.

    Args:
        records: All records; those of other studies, presets and problems are left out.
        preset: Name of the preset.
        problem: Further settings of the problem.
    """
    entries = [Entry(one) for one in records if (one.study, one.preset) == (UCI, preset)]
    chosen = [one for one in entries if problem_of(one.record)[1:] == problem]
    order: list[str] = published_uci()["sets"]
    return sorted(map(_results, group(chosen)), key=lambda one: order.index(one.name))


def published_uci() -> Mapping[str, Any]:
    """Published numbers: the names of the sets, and rows with a list of numbers per metric."""
    return json.loads(Path(__file__).with_name("published_uci.json").read_text(encoding="utf-8"))


def mean_ranks(sets: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Rank of every method on every set, averaged over sets; equal values share their ranks.

    >>> mean_ranks([{"a": 1.0, "b": 2.0, "c": 2.0}, {"a": 3.0, "b": 1.0, "c": 2.0}])
    {'a': 2.0, 'b': 1.75, 'c': 2.25}

    Args:
        sets: For each set, every method's mean of a metric that should be low. Methods that lack a
            set are not ranked.
    """
    complete = [name for name in sets[0] if all(name in one for one in sets)]
    return {
        name: sum(
            1
            + sum((one[other] < one[name]) + (one[other] == one[name]) / 2 for other in complete)
            # A method equals itself, which must not count.
            - 0.5
            for one in sets
        )
        / len(sets)
        for name in complete
    }


def _results(one: Group) -> SetResults:
    splits = set.intersection(*({entry.record.seed for entry in row.entries} for row in one.rows))
    if not splits:
        raise ValueError(f"{', '.join(one.problem)}: no split was run with every method.")
    records = {
        row.label: [entry.record for entry in row.entries if entry.record.seed in splits]
        for row in one.rows
    }
    name = one.problem[0].partition("=")[2]
    return SetResults(name, tuple(sorted(splits)), records)


def _one_table(metric: str, sets: Sequence[SetResults], known: Mapping[str, Any]) -> str:
    columns = [one.statistics(metric) for one in sets]
    titles = list(dict.fromkeys(title for column in columns for title in column))
    # The constant predictor comes after all methods.
    titles.sort(key=lambda title: title == CONSTANT)
    ranks: dict[str, float] = {}
    if metric == next(iter(_TABLES)):
        ours = [{k: v.mean for k, v in one.items() if k != CONSTANT} for one in columns]
        ranks = mean_ranks(ours)
    cells = [_column(metric, column) for column in columns]
    rows = [
        [
            title,
            *(column.get(title, "") for column in cells),
            *([f"{ranks[title]:.2f}" if title in ranks else ""] if ranks else []),
        ]
        for title in titles
    ]
    for published in known.get("rows", []):
        if metric in published:
            numbers = dict(zip(known["sets"], published[metric], strict=True))
            texts = [f"{numbers[one.name]:.2f}" for one in sets]
            rows.append([f"*{published['title']}*", *texts, *([""] if ranks else [])])
    return pipe_table(["", *(one.name for one in sets), *(["mean rank"] if ranks else [])], rows)


def _column(metric: str, column: Mapping[str, Statistic]) -> dict[str, str]:
    ours = {title: one for title, one in column.items() if title != CONSTANT}
    best = None
    if METRICS[metric].better == "low":
        best = min(ours.values(), key=lambda one: one.mean)
    texts: dict[str, str] = {}
    for title, one in column.items():
        error = one.error_of_mean
        text = _digits(one.mean) if error is None else f"{_digits(one.mean)} ± {_digits(error)}"
        bold = best is not None and title in ours and tied(one, best, METRICS[metric])
        texts[title] = f"**{text}**" if bold else text
    return texts


def _digits(value: float) -> str:
    """Two digits after the point, or more for a small number, which would show as zero.

    >>> _digits(12.345), _digits(0.00123)
    ('12.35', '0.0012')
    """
    return f"{value:.2f}" if abs(value) >= 0.05 or value == 0 else f"{value:.2g}"
