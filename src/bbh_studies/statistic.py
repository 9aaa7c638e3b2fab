"""Mean and spread of a metric over seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


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
