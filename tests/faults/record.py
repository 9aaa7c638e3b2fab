"""Keeps what came of a campaign, for the page that shows it."""

import os
from collections.abc import Sequence
from pathlib import Path

from bbh.files import write_json
from bbh_studies.record import _git, hardware, versions
from faults.tally import Tally


def write_record(path: Path, seed: int, seconds: float, tallies: Sequence[Tally]) -> None:
    """Writes the counts, with how to see them again and on what machine they were seen.

    ``load`` is the mean number of processes that ran in the last fifteen minutes, those of the
    campaign included: above the number of cores something else took part of the machine.
    """
    campaigns = [
        {"name": one.name, "outcomes": dict(sorted(one.counts.items())), "broken": one.broken}
        for one in tallies
    ]
    content = {
        "seed": seed,
        "seconds": round(seconds),
        "load": round(os.getloadavg()[2], 1),
        "hardware": hardware(),
        "versions": versions(),
        "commit": _git("rev-parse", "HEAD"),
        "campaigns": campaigns,
    }
    write_json(path, content)
