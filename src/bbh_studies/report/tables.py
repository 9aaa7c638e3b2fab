"""Rows of numbers: mean and standard deviation over seeds, beside what was published."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum

from bbh_studies.columns import METRICS, metric_named, ordered
from bbh_studies.metric import Metric
from bbh_studies.report.collect import Group, Runs
from bbh_studies.report.published import Published
from bbh_studies.statistic import LEVEL, Statistic, told_apart

_TIMES = ("seconds", "steps_per_second", "attack_seconds")


class Mark(Enum):
    """How ours compares with the published value: symbol and words."""

    BETTER = ("▲", "better")
    WORSE = ("▼", "worse")
    NOISE = ("≈", "within noise")
    ONE_SEED = ("?", "one seed, no noise estimate")

    @property
    def symbol(self) -> str:
        """The symbol, so that colour is never the only sign."""
        return self.value[0]

    @property
    def words(self) -> str:
        """The words for the legend, and for readers who hear the page."""
        return self.value[1]


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Attributes:
        text: ``mean ± std`` as shown.
        statistic: The mean and deviation that the text shows.
        paper: The published value as printed; empty if there is none.
        mark: How our value compares with the published one.
        best: Whether it is the best of its column, or not told apart from the best.
    """

    text: str
    statistic: Statistic
    paper: str = ""
    mark: Mark | None = None
    best: bool = False


@dataclass(frozen=True)
class Row:
    """One row: for every column a cell, or None if the row lacks that metric."""

    runs: Runs
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Table:
    """Columns and rows."""

    columns: tuple[Metric, ...]
    rows: tuple[Row, ...]

    @property
    def marks(self) -> list[Mark]:
        """The marks that occur in the table, in the order of their definition."""
        found = {cell.mark for row in self.rows for cell in row.cells if cell and cell.mark}
        return [mark for mark in Mark if mark in found]

    @property
    def legend(self) -> str:
        """What bold numbers and marks mean, in sentences."""
        seeds = {len(row.runs.entries) > 1 for row in self.rows if not row.runs.is_reference}
        tested = f"or not told apart from it by Welch's t-test (p ≥ {LEVEL:g})"
        words = [f"Bold: best of its column, {tested}." if True in seeds else ""]
        if seeds == {False}:
            words = ["Bold: best number of its column; with one seed each there is no test."]
        elif False in seeds:
            words.append("A row with one seed is taken to vary as the row beside it does.")
        if self.marks:
            marks = ", ".join(f"{mark.symbol} {mark.words}" for mark in self.marks)
            test = f" (not told from our runs by a t-test, p ≥ {LEVEL:g})"
            test = test if Mark.NOISE in self.marks else ""
            words.append(f"In brackets the paper's value, of a single run: {marks}{test}.")
        return " ".join(words)

    def column(self, name: str) -> dict[Runs, Cell]:
        """Cells of one metric by row; empty if the table has no such column."""
        places = [i for i, one in enumerate(self.columns) if one.name == name]
        return {
            row.runs: cell
            for row in self.rows
            for i in places
            if (cell := row.cells[i]) is not None
        }


def build_table(group: Group, paper: Published, *, main: bool) -> Table:
    """The main table of a study, or the table of its further metrics."""
    names = ordered((name for record in group.records for name in record.metrics), METRICS)
    # Runs of a study are not timed side by side, as those of a benchmark are.
    columns = tuple(
        one for one in map(metric_named, names) if (one.main and one.name not in _TIMES) == main
    )
    cells = [_column(one, group, paper) for one in columns]
    rows = zip(group.rows, zip(*cells, strict=True), strict=True) if cells else ()
    return Table(columns, tuple(Row(runs, row) for runs, row in rows))


def compare(ours: Statistic, theirs: Decimal, column: Metric) -> Mark | None:
    """Whether ours is better, worse or neither; None if a comparison means nothing.

    The published value is of a single run and rounded. A t-test tells whether it could be one of
    our runs, within half a unit of its last printed digit. Without a spread of our own there is no
    verdict.
    """
    if not column.comparable or column.better == "none" or not math.isfinite(ours.mean):
        return None
    published = Statistic(float(theirs), None, 1)
    apart = told_apart(ours, published, slack=_half_digit(theirs))
    if apart is None:
        return Mark.ONE_SEED
    if not apart:
        return Mark.NOISE
    return Mark.BETTER if (ours.mean < published.mean) == (column.better == "low") else Mark.WORSE


def _column(column: Metric, group: Group, paper: Published) -> list[Cell | None]:
    found = [runs.statistic(column.name) for runs in group.rows]
    best = _best(
        [None if row.is_reference else one for row, one in zip(group.rows, found, strict=True)],
        column,
    )
    if column.name in _TIMES:
        best = set()
    return [
        None if one is None else _cell(column, runs, one, paper, best=i in best)
        for i, (runs, one) in enumerate(zip(group.rows, found, strict=True))
    ]


def _cell(column: Metric, runs: Runs, ours: Statistic, paper: Published, *, best: bool) -> Cell:
    theirs = paper.get(runs.variant, column.name)
    if not math.isfinite(ours.mean):
        text = "not finite"
    elif ours.std is None or (ours.std == 0 and column.better == "none"):  # a mere count
        text = column.format(ours.mean)
    else:
        text = f"{column.format(ours.mean)} ± {column.format(ours.std)}"
    if theirs is None:
        return Cell(text, ours, best=best)
    return Cell(text, ours, f"{theirs:,}", compare(ours, theirs, column), best)


def _best(found: Sequence[Statistic | None], column: Metric) -> set[int]:
    """Indices of the best mean and of those that are not told apart from it."""
    means = {i: one for i, one in enumerate(found) if one and math.isfinite(one.mean)}
    if column.better == "none" or len(means) < 2:
        return set()
    choose = min if column.better == "low" else max
    top = choose(means.values(), key=lambda one: one.mean)
    return {i for i, one in means.items() if one is top or tied(one, top, column)}


def tied(one: Statistic, other: Statistic, column: Metric) -> bool:
    """Whether two means are not told apart.

    With a single seed each there is no test, and numbers that look the same in the table are tied.
    """
    apart = told_apart(one, other)
    return column.format(one.mean) == column.format(other.mean) if apart is None else not apart


def _half_digit(value: Decimal) -> float:
    """Half a unit of the last printed digit: 0.80 may have been 0.795 to 0.805."""
    exponent = value.as_tuple().exponent
    return 0.5 * 10.0**exponent if isinstance(exponent, int) else 0.0
