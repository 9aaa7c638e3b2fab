"""Nearest-neighbour terms of every weight with their gradient, without a compiler.

A few draws are put in order by a fixed network of comparisons, which works on whole rows at once,
and the gradient goes back through the same network. Columns are taken in blocks that stay in the
cache; sorting and autograd would go through memory dozens of times. Choices are weights of zero
and one, because arithmetic is several times faster than masks here.
"""

import functools
import itertools
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.kernels.neighbours import TINY

# Columns per block: some twenty rows of them fit in a core's cache, and two threads share the work.
_BLOCK = 2**16


class Swap(NamedTuple):
    """Two rows that were compared; one where they were in order already, else zero."""

    low: int
    high: int
    in_order: Tensor


def log_distances(
    values: Float[Tensor, "S D"],
    reference: Float[Tensor, "M D"] | None,
    floor: float,
    neighbours: int,
) -> tuple[Float[Tensor, ""], Float[Tensor, "S D"]]:
    """Σ log ν_k, or Σ log(ρ/ν) with a reference, over all entries; and its gradient in values."""
    gradient = torch.empty_like(values)
    sums: list[Tensor] = []
    for first in range(0, values.shape[1], _BLOCK):
        part = slice(first, first + _BLOCK)
        known = None if reference is None else reference[:, part]
        total, slopes = _block(values[:, part], known, floor**2, neighbours)
        sums.append(total)
        for row, slope in zip(gradient, slopes, strict=True):
            row[part] = slope
    return torch.stack(sums).sum(), gradient


def _block(
    values: Tensor, reference: Tensor | None, floor_squared: float, neighbours: int
) -> tuple[Tensor, list[Tensor]]:
    rows, swaps = _ordered(list(values))
    distances, partners = zip(
        *(_to_neighbour(rows, index, neighbours) for index in range(len(rows))), strict=True
    )
    distance = torch.stack(distances)
    squared = torch.addcmul(distance.new_full((), floor_squared), distance, distance)
    own: Tensor | None = None
    if reference is None:
        total = 0.5 * squared.log().sum()
        factor = distance / squared
    else:
        gap = torch.stack(rows) - _nearest(reference, torch.stack(rows))
        nu, rho = squared.sqrt(), (gap.square() + floor_squared).sqrt()
        ratio = rho / (nu + TINY)
        total = (ratio + TINY).log().sum()
        outer = 1 / ((ratio + TINY) * (nu + TINY))
        own = outer * gap / rho
        factor = -outer * ratio * distance / nu
    slopes = _slopes(factor, own, partners)
    for low, high, in_order in reversed(swaps):
        slopes[low], slopes[high] = (
            torch.lerp(slopes[high], slopes[low], in_order),
            torch.lerp(slopes[low], slopes[high], in_order),
        )
    return total, slopes


def _ordered(rows: list[Tensor]) -> tuple[list[Tensor], list[Swap]]:
    """Rows with every column in ascending order, and how they came there."""
    swaps: list[Swap] = []
    for low, high in network(len(rows)):
        first, second = rows[low], rows[high]
        swaps.append(Swap(low, high, _less(first, second)))
        rows[low], rows[high] = torch.minimum(first, second), torch.maximum(first, second)
    return rows, swaps


@functools.cache
def network(size: int) -> tuple[tuple[int, int], ...]:
    """Batcher's (1968) odd-even merge sort: pairs to put in order, one after the other.

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


class Partner(NamedTuple):
    """One where the k-th neighbour is row ``place``, else zero; everywhere without a weight."""

    place: int
    weight: Tensor | None


def _to_neighbour(rows: list[Tensor], index: int, neighbours: int) -> tuple[Tensor, list[Partner]]:
    """Distance of a row of ordered ones to its k-th nearest, and which that is.

    The k nearest and the value itself are k + 1 in sequence: the window whose farther end is
    nearest. That end is the neighbour.
    """
    row = rows[index]
    best: Tensor | None = None
    partners: list[Partner] = []
    first = max(0, index - neighbours)
    for low in range(first, min(index, len(rows) - 1 - neighbours) + 1):
        high = low + neighbours
        ends: list[tuple[int, Tensor]] = []
        if low < index:
            ends.append((low, row - rows[low]))
        if high > index:
            ends.append((high, rows[high] - row))
        if len(ends) == 1:
            ((end, reach),) = ends
            found = [Partner(end, None)]
        else:
            (_, left), (_, right) = ends
            reach = torch.maximum(left, right)
            further_right = _less(left, right)
            found = [Partner(low, 1 - further_right), Partner(high, further_right)]
        if best is None:
            best, partners = reach, found
            continue
        better = _less(reach, best)
        best = torch.minimum(best, reach)
        partners = [_weighted(one, 1 - better) for one in partners]
        partners += [_weighted(one, better) for one in found]
    assert best is not None
    return best, partners


def _weighted(partner: Partner, weight: Tensor) -> Partner:
    return Partner(partner.place, weight if partner.weight is None else partner.weight * weight)


def _less(left: Tensor, right: Tensor) -> Tensor:
    """One where left < right, else zero."""
    return (right - left).sign_().clamp_(min=0)


def _slopes(
    factor: Tensor, own: Tensor | None, partners: tuple[list[Partner], ...]
) -> list[Tensor]:
    """Gradient of every ordered row: a step away from a neighbour is one of the neighbour's too."""
    slopes = list(own.clone() if own is not None else torch.zeros_like(factor))
    for index, (strength, found) in enumerate(zip(factor, partners, strict=True)):
        for end, weight in found:
            share = strength if weight is None else strength * weight
            up, down = (index, end) if end < index else (end, index)
            slopes[up].add_(share)
            slopes[down].sub_(share)
    return slopes


def _nearest(reference: Tensor, values: Tensor) -> Tensor:
    """For each value the nearest entry of the same column of ``reference``."""
    ordered, _ = _ordered(list(reference))
    nearest = ordered[0].expand_as(values)
    for lower, upper in itertools.pairwise(ordered):
        beyond_middle = _less(0.5 * (lower + upper), values)
        nearest = torch.lerp(nearest, upper.expand_as(values), beyond_middle)
    return nearest
