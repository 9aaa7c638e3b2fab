"""Kills, damages and fills disks, counts what comes of it, and fails if a promise is broken.

``make test-faults`` runs it; docs/nothing-lost.md states the promises.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from faults import children
from faults.damage import damage
from faults.full_disk import fill_disk
from faults.kills import kill_fit, kill_processes, kill_studies
from faults.record import write_record
from faults.specimens import SPECIMENS
from faults.tally import Tally, table


def campaigns(sizes: argparse.Namespace) -> Iterator[Callable[[], Tally]]:
    """All that is tried, one after the other."""
    seed = sizes.seed
    for number, kind in enumerate(SPECIMENS):
        share = sizes.files // len(SPECIMENS) + (number < sizes.files % len(SPECIMENS))
        yield lambda kind=kind, share=share: damage(kind, share, seed)
    yield lambda: fill_disk(sizes.disks, seed)
    yield lambda: kill_fit(sizes.kills, seed, aimed=False)
    yield lambda: kill_fit(sizes.aimed, seed, aimed=True)
    yield lambda: kill_processes(sizes.processes, seed)
    yield lambda: kill_studies(sizes.studies, seed)


def main() -> int:
    """Runs all campaigns, prints the table, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    for name, number, what in (
        ("files", 10_000, "damaged files"),
        ("disks", 200, "full disks"),
        ("kills", 50, "kills of fit at random moments"),
        ("aimed", 50, "kills at operations on a checkpoint"),
        ("processes", 10, "kills of one of two processes"),
        ("studies", 20, "kills of bbh run"),
    ):
        parser.add_argument(f"--{name}", type=int, default=number, help=f"{what} ({number})")
    parser.add_argument("--record", type=Path, help="file to keep the counts in")
    sizes = parser.parse_args()
    print(f"seed {sizes.seed}", flush=True)
    children.start_quietly()
    tallies: list[Tally] = []
    start = time.monotonic()
    for campaign in campaigns(sizes):
        tallies.append(campaign())
        print(f"{time.monotonic() - start:6.0f} s  {tallies[-1].name}", flush=True)
    if sizes.record is not None:
        write_record(sizes.record, sizes.seed, time.monotonic() - start, tallies)
    print(table(tallies))
    broken = [one for tally in tallies for one in tally.broken]
    print("\n".join(["", "Promises broken:", *broken]) if broken else "\nNo promise was broken.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
