"""The rows that claims about results name, with the numbers of their tables."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bbh_studies.record import Record
from bbh_studies.report.collect import group_of
from bbh_studies.report.uci_table import (
    CONSTANT,
    UCI,
    SetResults,
    mean_ranks,
    published_uci,
    set_results,
)
from bbh_studies.statistic import Statistic

_ROW = re.compile(r"([\w.-]+)(?:\[([^\]]*)\])?")
_OTHERS = re.compile(r"others(?: but (.+))?")
# A table of its own among those of the UCI study.
_RANKS = "mean-rank"


class ClaimError(ValueError):
    """A claim cannot be understood, or names what no table has."""


@dataclass(frozen=True, eq=False)
class NamedRow:
    """A row of a table.

    Attributes:
        variant: Its name.
        own: The settings in which it differs from the preset and from other rows, ``key=value``.
        statistic: From a metric's name to its mean and spread; None if the row lacks the metric.
        is_ranked: Whether it is one of the rows that are compared with each other.
    """

    variant: str
    own: frozenset[str]
    statistic: Callable[[str], Statistic | None]
    is_ranked: bool = True

    def __str__(self) -> str:
        return f"{self.variant}[{' '.join(sorted(self.own))}]" if self.own else self.variant


@dataclass(frozen=True)
class NamedTable:
    """A table that claims can be about, with the words that name it."""

    words: tuple[str, ...]
    rows: tuple[NamedRow, ...]

    def find(self, names: str, besides: Iterable[NamedRow] = ()) -> list[NamedRow]:
        """The rows of a list of names.

        Args:
            names: Names with commas between them. A name may go on with settings that tell the row
                from others of that name: ``bbh[temperature=0.01 epochs=15]``. ``others`` is all
                ranked rows but ``besides``, and ``others but map, bbb`` leaves out these two.
            besides: Rows that are not among the others.
        """
        if match := _OTHERS.fullmatch(names.strip()):
            left = {*besides, *self.find(match[1] or "")}
            return [row for row in self.rows if row.is_ranked and row not in left]
        return [self._named(*match.groups(default="")) for match in _ROW.finditer(names)]

    def _named(self, variant: str, settings: str) -> NamedRow:
        wanted = frozenset(settings.split())
        same = [row for row in self.rows if row.variant == variant]
        exact = [row for row in same if row.own == wanted]
        found = exact or [row for row in same if wanted <= row.own]
        if len(found) == 1:
            return found[0]
        name = f"{variant}[{settings}]" if settings else variant
        which = "several rows have" if found else "no row has"
        known = ", ".join(map(str, found or self.rows))
        raise ClaimError(f"{which} the name {name} in {' '.join(self.words)}: {known}.")


class NamedTables:
    """All tables that claims can be about; each is made once.

    Args:
        records: All records.
    """

    def __init__(self, records: Sequence[Record]):
        self._records = records
        self._made: dict[tuple[str, ...], NamedTable] = {}
        self._uci: dict[str, list[SetResults]] = {}

    def find(self, words: Sequence[str]) -> list[NamedTable]:
        """The tables that some words name; a claim about several must hold in each.

        Args:
            words: Study, preset, and settings of the problem such as ``noise_scale=3``. In the UCI
                study the names of sets come last, or ``all``, or ``mean-rank``; with other settings
                than the preset's, it is named as other studies are.
        """
        if len(words) < 2:
            raise ClaimError(f"{' '.join(words)}: name a study and a preset.")
        study, preset, *rest = words
        if study == UCI and not any("=" in word for word in rest):
            return self._of_sets(preset, rest)
        key = tuple(words)
        if key not in self._made:
            self._made[key] = NamedTable(key, self._rows(study, preset, tuple(rest)))
        return [self._made[key]]

    def _rows(self, study: str, preset: str, problem: tuple[str, ...]) -> tuple[NamedRow, ...]:
        group = group_of(self._records, study, preset, problem)
        if group is None:
            raise ClaimError(f"there are no records of {' '.join((study, preset, *problem))}.")
        return tuple(
            NamedRow(runs.variant, frozenset(runs.own), runs.statistic, not runs.is_reference)
            for runs in group.rows
        )

    def _of_sets(self, preset: str, names: Sequence[str]) -> list[NamedTable]:
        if preset not in self._uci:
            self._uci[preset] = set_results(self._records, preset)
        sets = self._uci[preset]
        if list(names) == [_RANKS]:
            return [NamedTable((UCI, preset, _RANKS), _ranked(sets))]
        known = [one.name for one in sets]
        chosen = known if list(names) == ["all"] else names
        for name in [one for one in chosen if one not in known] or ([] if chosen else [""]):
            raise ClaimError(f"{name!r} is no set of {UCI} {preset}: {', '.join(known)}, or all.")
        return [
            NamedTable((UCI, preset, one.name), (*_methods(one), *_published(one)))
            for one in sets
            if one.name in chosen
        ]


def _methods(one: SetResults) -> list[NamedRow]:
    """The methods' rows, and that of the constant predictor."""

    def row(title: str, variant: str, *, is_ranked: bool) -> NamedRow:
        return NamedRow(variant, frozenset(), lambda m: one.statistics(m).get(title), is_ranked)

    rows = [row(title, of[0].variant, is_ranked=True) for title, of in one.records.items()]
    return [*rows, row(CONSTANT, "constant", is_ranked=False)]


def _published(one: SetResults) -> list[NamedRow]:
    content = published_uci()
    place: int = content["sets"].index(one.name)

    def row(published: dict[str, object]) -> NamedRow:
        def statistic(metric: str) -> Statistic | None:
            numbers = published.get(metric)
            found = numbers[place] if isinstance(numbers, list) else None
            return Statistic(float(found), None, 1) if isinstance(found, float) else None

        return NamedRow(str(published["name"]), frozenset(), statistic, is_ranked=False)

    return [row(published) for published in content["rows"]]


def _ranked(sets: Sequence[SetResults]) -> tuple[NamedRow, ...]:
    """Mean ranks of the methods, by a metric that should be low."""

    def row(title: str, variant: str) -> NamedRow:
        def statistic(metric: str) -> Statistic | None:
            columns = [one.statistics(metric) for one in sets]
            means = [{k: v.mean for k, v in one.items() if k != CONSTANT} for one in columns]
            rank = mean_ranks(means).get(title)
            return None if rank is None else Statistic(rank, None, 1)

        return NamedRow(variant, frozenset(), statistic)

    return tuple(row(title, of[0].variant) for title, of in sets[0].records.items())
