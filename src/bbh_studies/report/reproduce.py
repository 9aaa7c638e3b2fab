"""How the runs of a row were made: command, commit, versions, hardware, data."""

import json
import shlex
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from bbh_studies.record import Record
from bbh_studies.report.collect import Group, Runs, changed_settings


@dataclass(frozen=True)
class Origin:
    """Runs of one row that share everything but the seed.

    Attributes:
        title: Title of the row.
        command: The command that makes these runs again.
        facts: Pairs of a name and its value, such as commit and hardware.
    """

    title: str
    command: str
    facts: tuple[tuple[str, str], ...]


def origins(group: Group) -> list[Origin]:
    """One origin per row, or several if its runs come from different machines or commits."""
    return [origin for runs in group.rows for origin in _origins(runs)]


def command(records: list[Record]) -> str:
    """The command line that repeats these runs, which differ in their seed only."""
    first = records[0]
    kind, _, where = first.study.partition("-")
    if kind == "bench":
        return f"bbh bench {where}"
    words = ["bbh", "run", first.study, "--preset", first.preset, "--method", first.variant]
    for record in records:
        words += ["--seed", str(record.seed)]
    for setting in changed_settings(first):
        words += ["--set", setting]
    return shlex.join(words)


def _origins(runs: Runs) -> list[Origin]:
    records = sorted(runs.records, key=lambda record: (_facts(record), record.seed))
    return [
        Origin(runs.label, command(list(same)), facts)
        for facts, same in ((facts, list(same)) for facts, same in groupby(records, _facts))
    ]


def _facts(record: Record) -> tuple[tuple[str, str], ...]:
    changes = " with uncommitted changes" if record.dirty else ""
    return (
        ("Commit", f"{record.commit}{changes}" if record.commit else "not run from a repository"),
        ("Versions", _words(record.versions)),
        ("Hardware", hardware_words(record.hardware)),
        ("Data", _words(known_data(record))),
    )


def known_data(record: Record) -> dict[str, str]:
    """Names and fingerprints of the data; the test split, which is usual, is not mentioned."""
    return {k: v for k, v in record.data.items() if (k, v) != ("split", "test")}


def hardware_words(hardware: dict[str, Any]) -> str:
    """The hardware in words; the accelerator comes first, since it decides the speed.

    >>> hardware_words({"machine": "x86_64", "cores": 2})
    'x86_64, 2 cores'
    """
    rest = {k: v for k, v in hardware.items() if k not in _KNOWN and k != "gpu_shared"}
    words = [str(hardware[name]) + _KNOWN[name] for name in _KNOWN if hardware.get(name)]
    if hardware.get("gpu_shared"):
        words.append("shared with other processes")
    return ", ".join([*words, *([_words(rest)] if rest else [])]) or "not recorded"


_KNOWN = {"gpu": "", "machine": "", "cores": " cores"}


def _words(content: dict[str, Any]) -> str:
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in content.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items()) or "not recorded"
