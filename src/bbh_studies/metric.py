"""One column of a table: what a metric is called, its unit, and which way is better."""

from dataclasses import dataclass
from typing import Literal

Direction = Literal["low", "high", "none"]
_LARGE = 1e7  # from here on an exponent is easier to read than all digits


@dataclass(frozen=True)
class Metric:
    """One column of a table.

    Attributes:
        name: Key in a record's metrics.
        title: What people read.
        unit: Shown in brackets after the title; may be empty.
        better: Whether low or high is good; none if a number is neither good nor bad.
        decimals: Digits shown after the point.
        explanation: What the metric means, in one sentence.
        short: The title in a terminal, where room is scarce; empty if it is short enough.
        main: Whether it is in the main table; other columns are in the table of further metrics.
        scale: Factor by which the recorded number is multiplied before it is shown.
        comparable: Whether our value can be judged against a published one; wall time on other
            hardware cannot.
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
