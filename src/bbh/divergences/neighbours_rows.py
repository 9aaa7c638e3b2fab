"""Nearest-neighbour terms of every weight and their gradient, as operations on rows.

A few draws are sorted by a sorting network, a fixed sequence of comparisons that works on whole
rows at once, and the gradient is passed back through the same network. There are only additions,
multiplications, comparisons and the like, which can be done by torch or be recorded and compiled.
"""

import functools
import itertools
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from bbh.divergences.neighbours import TINY
from bbh.divergences.recorder import Rows

Pairs = tuple[tuple[int, int], ...]


class Swap(NamedTuple):
    """A comparison of two rows, which puts the smaller value of every column into the first one.

    Attributes:
        low: The row that gets the smaller values.
        high: The row that gets the larger values.
        in_order: One in columns where the two values were in order already, zero where they were
            exchanged.
    """

    low: int
    high: int
    in_order: Tensor


def terms(
    rows: Rows, reference: Rows | None = None, *, floor: float, neighbours: int
) -> tuple[Tensor, Rows]:
    """For every column Σ log ν, or Σ log(ρ/ν) with a reference, and its gradient in each row.

    Args:
        rows: The draws, one row each, with a column for every weight.
        reference: Draws of the prior; ρ is the distance to the nearest of them.
        floor: Distances are √(distance² + floor²).
        neighbours: k; ν is the distance to the k-th nearest other draw.
    """
    rows, swaps = _ordered(rows)
    known = None if reference is None else _ordered(reference)[0]
    total = torch.zeros_like(rows[0])
    slopes = [total] * len(rows)
    gaps = {
        (low, high): rows[high] - rows[low]
        for low, high in itertools.combinations(range(len(rows)), 2)
        if high - low <= neighbours
    }
    for index, row in enumerate(rows):
        windows = _windows(gaps, index, len(rows), neighbours)
        distance = _to_neighbour(windows)
        squared = distance * distance + floor**2
        if known is None:
            total = total + 0.5 * squared.log()
            factor = distance / squared
        else:
            gap = row - _nearest(known, row)
            nu, rho = squared.sqrt(), (gap * gap + floor**2).sqrt()
            ratio = rho / (nu + TINY)
            total = total + (ratio + TINY).log()
            outer = 1 / ((ratio + TINY) * (nu + TINY))
            slopes[index] = slopes[index] + outer * gap / rho
            factor = -outer * ratio * distance / nu
        # A distance depends on both of its ends: the lower one gets the opposite gradient.
        for end, share in _shares(factor, itertools.chain(*windows)):
            up, down = (index, end) if end < index else (end, index)
            slopes[up] = slopes[up] + share
            slopes[down] = slopes[down] - share
    for low, high, in_order in reversed(swaps):
        slopes[low], slopes[high] = (
            torch.lerp(slopes[high], slopes[low], in_order),
            torch.lerp(slopes[low], slopes[high], in_order),
        )
    return total, slopes


def _ordered(rows: Rows) -> tuple[Rows, list[Swap]]:
    """Rows with every column in ascending order, and the comparisons that sorted them."""
    rows = list(rows)
    swaps: list[Swap] = []
    for low, high in network(len(rows)):
        first, second = rows[low], rows[high]
        swaps.append(Swap(low, high, _less(first, second)))
        rows[low], rows[high] = torch.minimum(first, second), torch.maximum(first, second)
    return rows, swaps


@functools.cache
def network(size: int) -> Pairs:
    """Batcher's (1968) odd-even merge sort, as a sequence of pairs of rows to put in order.

    >>> network(3)
    ((0, 1), (0, 2), (1, 2))
    """
    pairs: list[tuple[int, int]] = []
    length = 1
    while length < size:
        step = length
        while step >= 1:
            for start in range(step % length, size - step, 2 * step):
                for low in range(start, min(start + step, size - step)):
                    if low // (2 * length) == (low + step) // (2 * length):
                        pairs.append((low, low + step))
            step //= 2
        length *= 2
    return tuple(pairs)


class End(NamedTuple):
    """An end of a window: its row, and how far it is from the value that the window contains."""

    place: int
    distance: Tensor


def _windows(
    gaps: dict[tuple[int, int], Tensor], index: int, num_rows: int, neighbours: int
) -> list[list[End]]:
    """All windows of k + 1 consecutive sorted rows that contain the row at ``index``.

    They come from right to left. A window is a list of its two ends, left and right, without an end
    that is the row at ``index`` itself.
    """
    leftmost, rightmost = max(0, index - neighbours), min(index, num_rows - 1 - neighbours)
    return [
        [
            End(end, gaps[min(end, index), max(end, index)])
            for end in (low, low + neighbours)
            if end != index
        ]
        for low in range(rightmost, leftmost - 1, -1)
    ]


def _to_neighbour(windows: list[list[End]]) -> Tensor:
    """Distance to the k-th neighbour.

    A value and its k nearest values fill one of the windows, the one whose farther end is nearest.
    The k-th neighbour is that end.
    """
    reaches = [
        functools.reduce(torch.maximum, [end.distance for end in window]) for window in windows
    ]
    return functools.reduce(torch.minimum, reaches)


def _shares(factor: Tensor, ends: Iterable[End]) -> list[tuple[int, Tensor]]:
    """For every end its row, and the factor in columns where it is the k-th neighbour, else zero.

    The ends of all windows, in the order of ``_windows``, are a left and a right one in turn; left
    ends get farther and right ends nearer. In each column a walk along them finds the k-th
    neighbour: it goes on to the next end as long as, of the present and the next one, the left end
    is the nearer one. The reason: the j-th value on the left, say, is the k-th neighbour if it is
    farther than the (k − j)-th value on the right, which is the next end, but nearer than the
    (k − j + 1)-th, which is the previous end.
    """
    ends = list(ends)
    shares: list[tuple[int, Tensor]] = []
    reached = factor
    for end, following in itertools.pairwise(ends):
        left, right = (end, following) if end.place < following.place else (following, end)
        beyond = factor * _less(left.distance, right.distance)
        shares.append((end.place, reached - beyond))
        reached = beyond
    return [*shares, (ends[-1].place, reached)]


def _less(left: Tensor, right: Tensor) -> Tensor:
    """One where left < right, else zero. As numbers, since torch computes with masks slowly."""
    return torch.gt(right, left, out=torch.empty_like(left))


def _nearest(ordered: Rows, values: Tensor) -> Tensor:
    """For each value, the nearest entry in the same column of the sorted rows."""
    nearest = ordered[0]
    for lower, upper in itertools.pairwise(ordered):
        beyond_middle = _less(0.5 * (lower + upper), values)
        nearest = torch.lerp(nearest, upper, beyond_middle)
    return nearest
