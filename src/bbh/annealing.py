"""Schedules of β, the weight of the complexity, over the epochs of training."""

import math
from collections.abc import Callable
from dataclasses import dataclass

# β as a function of the epoch = step / steps_per_epoch, counted from 0 and fractional.
Schedule = Callable[[float], float]


@dataclass(frozen=True)
class Linear:
    """β is 0 before epoch ``start``, then rises linearly to 1 at epoch ``end``.

    ``Linear(5, 20)`` is the paper's schedule on MNIST, ``Linear(20, 35)`` on CIFAR5.

    >>> steps_per_epoch = 550
    >>> [Linear(5, 20)(step / steps_per_epoch) for step in (0, 2749, 2750, 6875, 11000)]
    [0.0, 0.0, 0.0, 0.5, 1.0]
    """

    start: float
    end: float

    def __post_init__(self):
        _check_order(self.start, self.end)

    def __call__(self, epoch: float) -> float:
        """β at this epoch, which may be fractional."""
        return _progress(epoch, self.start, self.end)


@dataclass(frozen=True)
class Cosine:
    """β is 0 before epoch ``start``, then rises along half a cosine to 1 at epoch ``end``."""

    start: float
    end: float

    def __post_init__(self):
        _check_order(self.start, self.end)

    def __call__(self, epoch: float) -> float:
        """β at this epoch, which may be fractional."""
        return 0.5 - 0.5 * math.cos(math.pi * _progress(epoch, self.start, self.end))


def _check_order(start: float, end: float) -> None:
    if not 0 <= start < end < math.inf:
        raise ValueError(f"annealing from epoch {start} to {end}: it must start before it ends.")


def _progress(epoch: float, start: float, end: float) -> float:
    return min(1.0, max(0.0, (epoch - start) / (end - start)))
