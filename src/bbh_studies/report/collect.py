"""Finds records, checks them, and sorts them into tables and rows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from bbh_studies.arrays import read_arrays
from bbh_studies.columns import ordered
from bbh_studies.record import FILE_NAME, Record, RecordError
from bbh_studies.settings.config import differences
from bbh_studies.settings.methods import METHODS
from bbh_studies.settings.words import ConfigError
from bbh_studies.statistic import Statistic
from bbh_studies.studies import STUDIES, find_study, row_title, row_titles, study_title

# Settings that change what is to be learnt or measured.
_PROBLEM = ("noise_scale", "dataset", "split", "attack_images")


@dataclass(frozen=True, eq=False)
class Entry:
    """One record and its file; ``path`` is None for a record that was never written."""

    record: Record
    path: Path | None = None

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays for figures; empty if there are none."""
        return {} if self.path is None else read_arrays(self.path.parent, self.record.arrays)


@dataclass(frozen=True, eq=False)  # a key of dictionaries: hashed by identity, not by its records
class Runs:
    """A row: runs that differ in nothing but their seed, lowest seed first.

    Attributes:
        variant: Name of the row in its study.
        settings: Differences from the preset, as ``key=value``.
        own: The ones among these settings that not all rows of the table share.
        entries: One per seed; a single one of a reference, which is one sample whatever the seed.
        alone: Whether no other row of the table has this name.
    """

    variant: str
    settings: tuple[str, ...]
    own: tuple[str, ...]
    entries: tuple[Entry, ...]
    alone: bool

    @property
    def title(self) -> str:
        """The title of the row in tables."""
        return row_title(self.first.record.study, self.variant)

    @property
    def full_title(self) -> str:
        """The title, with the settings in which the row differs from others of the table."""
        return f"{self.title} ({', '.join(self.own)})" if self.own else self.title

    @property
    def label(self) -> str:
        """The shortest title that tells the row from others, for legends and headings."""
        return self.title if self.alone else self.full_title

    @property
    def is_reference(self) -> bool:
        """Whether other rows are measured against this one; it is never ranked or called best."""
        return _is_reference(self.first.record)

    @property
    def records(self) -> list[Record]:
        """The records of all seeds, without their folders."""
        return [entry.record for entry in self.entries]

    def statistic(self, metric: str) -> Statistic | None:
        """Mean and spread of a metric over the seeds that have it; None if none has."""
        values = [one.metrics[metric] for one in self.records if metric in one.metrics]
        return Statistic.of(values) if values else None

    @property
    def first(self) -> Entry:
        """The run with the lowest seed, which figures show."""
        return self.entries[0]


@dataclass(frozen=True)
class Group:
    """All rows of one study and preset, on one problem.

    Attributes:
        study: Name of the study.
        preset: Name of the preset.
        problem: Settings through which the data differ from the preset's.
        shared: Settings in which all rows differ from the preset.
        rows: The rows, in the order of the study.
    """

    study: str
    preset: str
    problem: tuple[str, ...]
    shared: tuple[str, ...]
    rows: tuple[Runs, ...]

    @property
    def title(self) -> str:
        """The title of the study in reports."""
        return study_title(self.study)

    @property
    def preset_title(self) -> str:
        """The preset, and the settings through which the problem differs from the preset's."""
        return ", ".join([self.preset, *self.problem])

    @property
    def records(self) -> list[Record]:
        """The records of all rows."""
        return [record for row in self.rows for record in row.records]


def collect(folders: Sequence[Path]) -> list[Group]:
    """Reads every record below the folders.

    Raises:
        RecordError: A record cannot be read, two contradict each other, or there is none.
    """
    for folder in folders:
        if not folder.is_dir():
            raise RecordError(f"there is no folder {folder}: `bbh run` makes one with records.")
    paths = sorted({path for folder in folders for path in folder.rglob(FILE_NAME)})
    if not paths:
        names = ", ".join(str(folder) for folder in folders) or "no folder"
        raise RecordError(
            f"no records below {names}: make some with `bbh run digits --out runs`, "
            "then `bbh report runs`."
        )
    entries = [Entry(Record.read(path), path) for path in paths]
    # Benchmarks write records too; their tables are in the documentation.
    studies = [entry for entry in entries if not entry.record.study.startswith("bench-")]
    if not studies:
        raise RecordError(f"the records below {paths[0].parent} are of benchmarks, not of studies.")
    return group(studies)


def group(entries: Sequence[Entry]) -> list[Group]:
    """Sorts records by study, preset, problem and row, in the order of the register."""
    keys = [(e.record.study, e.record.preset, problem_of(e.record)) for e in entries]
    studies = ordered((study for study, _, _ in keys), STUDIES)
    return [
        _group(key, [entry for entry, other in zip(entries, keys, strict=True) if other == key])
        for key in sorted(set(keys), key=lambda key: (studies.index(key[0]), *key[1:]))
    ]


def group_of(
    records: Sequence[Record], study: str, preset: str, problem: tuple[str, ...]
) -> Group | None:
    """The rows of one study and preset on one problem; None if no record belongs to them."""
    # The problem last: it takes long to tell, compared with the rest.
    of_study = [one for one in records if (one.study, one.preset) == (study, preset)]
    chosen = [Entry(one) for one in of_study if problem_of(one) == problem]
    return group(chosen)[0] if chosen else None


def problem_of(record: Record) -> tuple[str, ...]:
    """Changed settings of what is learnt or measured: runs that differ in them do not compare."""
    return tuple(s for s in changed_settings(record) if s.partition("=")[0] in _PROBLEM)


def changed_settings(record: Record) -> tuple[str, ...]:
    """Settings that differ from the preset of the record, as ``--set`` takes them.

    The part of a study that the record belongs to always comes first.
    """
    try:
        study = find_study(record.study)
        preset = study.row(record.variant, record.preset)
    except ConfigError:
        return ()
    part = study.part_of(record.config)
    changed = differences(preset.flat, record.config)
    words = tuple(f"{name}={value}" for name, (_, value) in changed.items())
    return (*part, *(word for word in words if word not in part))


def _settled(record: Record) -> str:
    """All settings of a run as text, to tell whether two runs have the same settings.

    Settings that are newer than the record had their default value.
    """
    try:
        settings = find_study(record.study).restored(record.config).flat
    except ConfigError:
        settings = record.config
    return json.dumps(settings, sort_keys=True)


def _group(key: tuple[str, str, tuple[str, ...]], entries: Sequence[Entry]) -> Group:
    found: dict[tuple[str, str], dict[int, Entry]] = {}
    for entry in entries:
        record = entry.record
        # Runs with other settings are another row: a mean over both would have no meaning.
        seeds = found.setdefault((record.variant, _settled(record)), {})
        earlier = seeds.setdefault(record.seed, entry)
        # Compared as text, since NaN does not equal itself.
        if json.dumps(earlier.record.metrics) != json.dumps(record.metrics):
            raise RecordError(
                f"{earlier.path} and {entry.path} are the same run (seed {record.seed}) with other "
                "results: leave one of them out."
            )
    study, preset, problem = key
    variants = ordered((variant for variant, _ in found), row_titles(study))
    keys = sorted(found, key=lambda row: (variants.index(row[0]), row[1]))
    settings = {row: changed_settings(next(iter(found[row].values())).record) for row in keys}
    shared = tuple(one for one in settings[keys[0]] if all(one in s for s in settings.values()))
    rows = tuple(
        Runs(
            row[0],
            settings[row],
            tuple(one for one in settings[row] if one not in shared),
            _counted(found[row]),
            alone=[name for name, _ in keys].count(row[0]) == 1,
        )
        for row in keys
    )
    return Group(study, preset, problem, shared, rows)


def _counted(by_seed: dict[int, Entry]) -> tuple[Entry, ...]:
    """The entries that count as seeds of a row."""
    entries = tuple(by_seed[seed] for seed in sorted(by_seed))
    return entries[:1] if _is_reference(entries[0].record) else entries


def _is_reference(record: Record) -> bool:
    method = METHODS.get(record.method)
    return method is not None and not method.is_trained
