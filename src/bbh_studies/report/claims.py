"""Claims about results in README and docs, recomputed from the records.

A sentence that compares rows is followed by a comment that says the same in a few words:

    <!-- claim: mnist corrected; nll, ece: ensemble lower than others; error: bbh like map -->

First comes the table (study, preset, settings of the problem), then metrics and a statement about
their rows:

    A, B lower than C, D           every mean of the left is lower, and told apart by Welch's t-test
    A lower in mean than others    the means alone; ``others`` are all rows but those on the left
    A lower than others but B, C   these two are left out as well
    A, B higher than C             the same the other way round
    A like B                       not told apart, by a test that could be made
    A between 0.93 and 1           the mean as the table shows it, ends included
    A between 1.5 and 2.5 times B  the ratio of two means

Numbers of one seed can be compared in mean only.
"""

import math
import re
from dataclasses import dataclass

from bbh_studies.columns import metric_named
from bbh_studies.report.claim_rows import ClaimError, NamedRow, NamedTable, NamedTables
from bbh_studies.statistic import LEVEL, Statistic, p_value

_COMPARED = re.compile(r"(.+?) (lower|higher)( in mean)? than (.+)")
_ALIKE = re.compile(r"(.+?) like (.+)")
_WITHIN = re.compile(r"(.+?) between (\S+) and (\S+)(?: times (.+))?")


@dataclass(frozen=True)
class _Statement:
    """A statement about one metric of one table."""

    table: NamedTable
    metric: str

    def failures(self, text: str) -> list[str]:
        """Why the statement does not hold, one sentence for every pair of rows; empty if it does.

        Raises:
            ClaimError: It cannot be understood.
        """
        if match := _COMPARED.fullmatch(text):
            left, direction, in_mean, right = match.groups()
            return [
                why
                for one, other in self._pairs(left, right)
                if (why := self._not_apart(one, other, direction, in_mean=bool(in_mean)))
            ]
        if match := _ALIKE.fullmatch(text):
            pairs = self._pairs(*match.groups())
            return [why for pair in pairs if (why := self._not_alike(*pair))]
        if match := _WITHIN.fullmatch(text):
            left, low, high, right = match.groups()
            bounds = _number(low), _number(high)
            found = [self._outside(row, bounds, right) for row in self.table.find(left)]
            return [why for why in found if why]
        raise ClaimError(
            f"{text!r}: write “A lower than B”, “A higher in mean than others”, “A like B” or "
            "“A between 1 and 2”."
        )

    def _pairs(self, left: str, right: str) -> list[tuple[NamedRow, NamedRow]]:
        ours = self.table.find(left)
        theirs = self.table.find(right, besides=ours)
        if not ours or not theirs:
            raise ClaimError(f"{left!r} against {right!r}: there is nothing to compare.")
        return [(one, other) for one in ours for other in theirs]

    def _not_apart(self, one: NamedRow, other: NamedRow, direction: str, *, in_mean: bool) -> str:
        first, second = self._of(one), self._of(other)
        difference = second.mean - first.mean if direction == "lower" else first.mean - second.mean
        p = p_value(first, second)
        if difference > 0 and (in_mean or (p is not None and p < LEVEL)):
            return ""
        return f"{self._shown(one)} is not told to be {direction} than {self._shown(other)}{_p(p)}"

    def _not_alike(self, one: NamedRow, other: NamedRow) -> str:
        p = p_value(self._of(one), self._of(other))
        if p is not None and p >= LEVEL:
            return ""
        return f"{self._shown(one)} is not like {self._shown(other)}{_p(p)}"

    def _outside(self, row: NamedRow, bounds: tuple[float, float], of: str | None) -> str:
        if of is None:
            column = metric_named(self.metric)
            value = round(self._of(row).mean * column.scale, column.decimals)
            words = self._shown(row)
        else:
            (base,) = self.table.find(of)
            value = self._of(row).mean / self._of(base).mean
            words = f"{self._shown(row)} over {self._shown(base)} = {value:.3g}"
        low, high = bounds
        return "" if low <= value <= high else f"{words} is not between {low:g} and {high:g}"

    def _of(self, row: NamedRow) -> Statistic:
        found = row.statistic(self.metric)
        if found is None or not math.isfinite(found.mean):
            raise ClaimError(f"{row} has no {self.metric} in {' '.join(self.table.words)}.")
        return found

    def _shown(self, row: NamedRow) -> str:
        statistic, column = self._of(row), metric_named(self.metric)
        spread = "" if statistic.std is None else f" ± {column.format(statistic.std)}"
        return f"{self.metric} of {row} ({column.format(statistic.mean)}{spread})"


def check_claim(claim: str, tables: NamedTables) -> list[str]:
    """Why a claim does not hold, one sentence for every pair of rows; empty if it does.

    Args:
        claim: What stands in the comment after ``claim:``.
        tables: The tables it may be about.

    Raises:
        ClaimError: The claim cannot be understood, or names what no table has.
    """
    words, *statements = (part.strip() for part in " ".join(claim.split()).split(";"))
    if not statements:
        raise ClaimError(f"{claim!r} claims nothing: table; metric: statement; …")
    found: list[str] = []
    for table in tables.find(words.split()):
        for statement in statements:
            metrics, colon, text = statement.partition(":")
            if not colon:
                raise ClaimError(f"{statement!r}: write metric: statement.")
            for metric in metrics.split(","):
                where = f"{' '.join(table.words)}: "
                failures = _Statement(table, metric.strip()).failures(text.strip())
                found += [f"{where}{why}." for why in failures]
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ClaimError(f"{text!r} is no number.") from error


def _p(p: float | None) -> str:
    return ", and one seed each cannot be tested" if p is None else f" (p = {p:.3f})"
