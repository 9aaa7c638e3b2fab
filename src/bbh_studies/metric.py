"""One column of a table: what a metric is called, its unit, and which way is better."""

from dataclasses import dataclass
from typing import Literal

Direction = Literal["low", "high", "none"]
_LARGE = 1e7  # from here on digits are harder to read than an exponent


@dataclass(frozen=True)
class Metric:
    """One column.

    Attributes:
        name: Key in a record's metrics.
        title: What people read.
        unit: Behind the title in brackets; may be empty.
        better: Which way is good; none where a number is neither good nor bad.
        decimals: Digits shown behind the point.
        explanation: What it means, in one sentence.
        short: The title in a terminal, where room is scarce; empty if it is short enough.
        main: Whether it is in the main table, not among the further metrics.
        scale: The shown number is the recorded one times this.
        comparable: Whether a published value can be judged against; wall time on other hardware
            cannot.
    """

    name: str
    title: str
    unit: str
    better: Direction
    decimals: int
    explanation: str
    short: str = ""
    main: bool = False
    scale: float = 1.0
    comparable: bool = True

    @property
    def heading(self) -> str:
        """Title, unit and an arrow for the good direction."""
        arrow = {"low": "\N{NO-BREAK SPACE}↓", "high": "\N{NO-BREAK SPACE}↑", "none": ""}[
            self.better
        ]
        return f"{self.title}{f' [{self.unit}]' if self.unit else ''}{arrow}"

    def format(self, value: float, most_decimals: int = 9) -> str:
        """The number as shown, without its unit.

        >>> Metric("nll", "NLL", "nats", "low", 4, "").format(0.03141, most_decimals=3)
        '0.031'
        """
        shown = value * self.scale
        decimals = min(self.decimals, most_decimals)
        return f"{shown:.2e}" if abs(shown) >= _LARGE else f"{shown:,.{decimals}f}"
