"""Mean and spread of a metric over seeds, and whether two means are told apart."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Two means are told apart if chance alone would put them so far apart in fewer cases than this.
LEVEL = 0.05
_ROUNDING = 1e-9  # rounding error of binary numbers, for values of order one


@dataclass(frozen=True)
class Statistic:
    """A metric's mean and standard deviation over seeds.

    Attributes:
        mean: Mean over seeds.
        std: Sample standard deviation; None with a single seed.
        count: Number of seeds.
    """

    mean: float
    std: float | None
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> "Statistic":
        """Mean and sample standard deviation of a metric's values, one value per seed.

        >>> Statistic.of([1.0, 2.0, 3.0])
        Statistic(mean=2.0, std=1.0, count=3)
        """
        std = (
            statistics.stdev(values)
            if len(values) > 1 and all(map(math.isfinite, values))
            else None
        )
        return Statistic(sum(values) / len(values), std, len(values))

    @property
    def error_of_mean(self) -> float | None:
        """Standard error of the mean."""
        return None if self.std is None else self.std / math.sqrt(self.count)


def p_value(one: Statistic, other: Statistic, slack: float = 0.0) -> float | None:
    """How probable so large a difference of means is by chance: Welch's t-test, two-sided.

        t = (m₁ − m₂) / √(e₁² + e₂²),   ν = (e₁² + e₂²)² / (e₁⁴/(n₁ − 1) + e₂⁴/(n₂ − 1)),

    with standard errors e = s/√n, Welch (1947). A single value says nothing about its own noise, so
    it is given the spread of the other sample (Student's test). None if both are single values.

    >>> round(p_value(Statistic(1.0, 0.1, 3), Statistic(1.3, 0.1, 3)), 4)
    0.0213

    Args:
        one: A sample of normally distributed values.
        other: Another one.
        slack: A difference that counts as none, for values that were rounded.
    """
    samples = [each for each in (one, other) if each.count > 1]
    if not samples or any(each.std is None for each in samples):
        return None
    first, second = (each if each.count > 1 else samples[0] for each in (one, other))
    squares = (first.std or 0.0) ** 2 / one.count, (second.std or 0.0) ** 2 / other.count
    total = sum(squares)
    distance = max(0.0, abs(one.mean - other.mean) - slack - _ROUNDING)
    if total == 0:  # nothing varies
        return float(distance == 0)
    freedom = samples[0].count - 1.0
    if len(samples) == 2:
        shares = squares[0] / total, squares[1] / total
        freedom = 1 / (shares[0] ** 2 / (one.count - 1) + shares[1] ** 2 / (other.count - 1))
    return student_p(distance / math.sqrt(total), freedom)


def told_apart(one: Statistic, other: Statistic, slack: float = 0.0) -> bool | None:
    """Whether chance alone would hardly put two means so far apart; None without a test."""
    p = p_value(one, other, slack)
    return None if p is None else p < LEVEL


def student_p(t: float, freedom: float) -> float:
    """P(|T| ≥ t) for Student's T with this many degrees of freedom.

    >>> round(student_p(12.706, 1), 4), round(student_p(4.303, 2), 4)
    (0.05, 0.05)
    """
    from scipy.special import stdtr  # only here: reading and printing records does without

    return 2 * float(stdtr(freedom, -t))
