"""Tells from records whether Bayes by Hypernet is the most robust method.

The paper says so of its own posteriors under its own attack. Only records of these (presets
``paper`` and ``legacy``, attack ``legacy``) are compared with what it says.
"""

import math
from enum import IntEnum
from typing import NamedTuple

from bbh_studies.attack_columns import ATTACK_TITLES
from bbh_studies.report.collect import Runs
from bbh_studies.report.tables import Cell, Table

_OURS = "bbh"
# Presets in which posteriors are the paper's; all others are judged by the corrected attacks.
_PAPERS = ("paper", "legacy")
_PAPERS_ATTACK = ("legacy",)
_CORRECTED = ("fgsm", "pgd")
# Exceptions that the paper itself makes when it describes its figures.
_EXCEPTIONS = {"cifar5-attacks": ", but for dropout at small sizes"}


class Place(IntEnum):
    """The place of a row among the others, the worst last."""

    BEST = 0
    TIED = 1
    BEHIND = 2


class Standing(NamedTuple):
    """The place of Bayes by Hypernet under one attack, and its description in words."""

    place: Place
    words: str


_VERDICTS = {
    Place.BEST: "is the most robust method",
    Place.TIED: "is not told apart from the most robust method",
    Place.BEHIND: "is not the most robust method",
}


def verdict(table: Table) -> str:
    """The verdict in one sentence, and its numbers; empty if the records do not tell.

    The corrected attacks are FGSM and PGD on the averaged predictive. The most robust method is the
    one with the highest accuracy, as a mean over all sizes. The worse of both places counts.
    """
    found = {attack: standing(table, attack) for attack in ATTACK_TITLES}
    if not any(found.values()):
        return ""
    record = table.rows[0].runs.first.record
    of_paper = record.preset in _PAPERS
    judged = _PAPERS_ATTACK if of_paper else _CORRECTED
    places = [one.place for attack, one in found.items() if one and attack in judged]
    if len(places) < len(judged):
        return ""
    under = "the paper's attack" if of_paper else "the corrected attacks"
    claim = ""
    if of_paper:
        exception = _EXCEPTIONS.get(record.study, "")
        claim = f"; the paper says that it is the most robust{exception}"
    seeds = any(len(row.runs.entries) > 1 for row in table.rows)
    untested = "" if seeds else " (one seed each, not tested)"
    numbers = "; ".join(
        f"{ATTACK_TITLES[attack]} {one.words}" for attack, one in found.items() if one
    )
    return (
        f"Bayes by Hypernet {_VERDICTS[max(places)]} under {under}{untested}{claim}. "
        f"Accuracy, mean over all sizes: {numbers}."
    )


def standing(table: Table, attack: str) -> Standing | None:
    """The standing of Bayes by Hypernet under an attack; None if it or all others are missing."""
    cells = {
        runs: cell
        for runs, cell in table.column(f"{attack}_mean_accuracy").items()
        if not runs.is_reference and math.isfinite(cell.statistic.mean)
    }
    # Highest accuracy first; if Bayes by Hypernet has several rows, its best one counts.
    ranking = sorted(cells, key=lambda runs: cells[runs].statistic.mean, reverse=True)
    ours = next((runs for runs in ranking if runs.variant == _OURS), None)
    others = [runs for runs in ranking if runs.variant != _OURS]
    if ours is None or not others:
        return None
    own = f"{cells[ours].text}\N{NO-BREAK SPACE}%"
    tied = [runs for runs in others if cells[runs].best]
    if not cells[ours].best:
        return Standing(Place.BEHIND, f"{own}, behind {_named(cells, others[0])}")
    if tied:
        names = ", ".join(_named(cells, runs) for runs in tied)
        return Standing(Place.TIED, f"{own}, not told apart from {names}")
    return Standing(Place.BEST, f"{own}, before {_named(cells, others[0])}")


def _named(cells: dict[Runs, Cell], runs: Runs) -> str:
    return f"{runs.full_title} ({cells[runs].text}\N{NO-BREAK SPACE}%)"
