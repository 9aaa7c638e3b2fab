"""What came of a campaign: how often each outcome was seen, and which of them break a promise."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts of one campaign.

    Attributes:
        name: What was done.
        good: The outcomes that keep the promise.
        counts: How often each outcome was seen.
        broken: What else was seen, in words, with what is needed to see it again.
    """

    name: str
    good: Sequence[str]
    counts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def add(self, outcome: str, where: str) -> None:
        """Counts one outcome; ``where`` says how to see it again."""
        self.counts[outcome] += 1
        if outcome not in self.good:
            self.broken.append(f"{self.name}, {where}: {outcome}")


def table(tallies: Iterable[Tally]) -> str:
    """One line for each campaign: how many were tried, how they ended, how many broke a promise."""
    rows = [("campaign", "tried", "broken", "outcomes")]
    for one in tallies:
        seen = ", ".join(f"{number:,} {outcome}" for outcome, number in sorted(one.counts.items()))
        rows.append((one.name, f"{one.counts.total():,}", f"{len(one.broken):,}", seen))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{name:{widths[0]}}  {tried:>{widths[1]}}  {broken:>{widths[2]}}  {seen}"
        for name, tried, broken, seen in rows
    )
