"""Nearest-neighbour terms of every weight and their gradient, on a CPU.

A few draws are sorted by a sorting network, a fixed sequence of comparisons that works on whole
rows at once, and the gradient is passed back through the same network. Selections are
multiplications by zero or one, because arithmetic is several times faster than masks here.

For large networks ``torch.compile`` turns everything into one loop, if there is a C++ compiler.
Otherwise columns are processed in blocks that stay in the cache, whereas sorting and autograd would
go through memory dozens of times.
"""

import functools
import itertools
import logging
import os
import shutil
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode  # pyright: ignore[reportPrivateUsage]

from bbh.divergences.neighbours import TINY

logger = logging.getLogger("bbh")

# Columns per block: about twenty such rows fit in a core's cache, and two threads share the work.
_BLOCK = 2**16
# The least number of columns worth compiling for: compiling takes seconds, and from here on it
# saves about ten milliseconds in each step.
_WORTH_COMPILING = 2**17
# The largest number of draws to compile for: the number of comparisons, and with it the work of the
# compiler, grows faster than the number of draws.
_MOST_COMPILED = 8

Pairs = tuple[tuple[int, int], ...]
Terms = Callable[..., tuple[Tensor, Tensor]]


class Swap(NamedTuple):
    """Two rows that were compared; ``in_order`` is one where they were in order, else zero."""

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
    width = values.shape[1]
    num_reference = 0 if reference is None else len(reference)
    pairs = network(len(values)), network(num_reference)
    few = max(len(values), num_reference) <= _MOST_COMPILED
    if few and width >= _WORTH_COMPILING:
        found = _compiled()(values, reference, pairs, floor**2, neighbours)
        if found is not None:
            return found
    gradient = torch.empty_like(values)
    sums: list[Tensor] = []
    for first in range(0, width, _BLOCK):
        part = slice(first, first + _BLOCK)
        known = None if reference is None else reference[:, part]
        total, gradient[:, part] = _terms(values[:, part], known, pairs, floor**2, neighbours)
        sums.append(total)
    return torch.stack(sums).sum(), gradient


class Compiled:
    """``_terms`` compiled into one loop, if there is a compiler."""

    def __init__(self):
        has_compiler = any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++"))
        self.usable = has_compiler and os.environ.get("TORCH_COMPILE_DISABLE") != "1"
        self._terms: Terms | None = None

    def __call__(self, *arguments: object) -> tuple[Tensor, Tensor] | None:
        """The result of ``_terms``; None where it cannot be compiled.

        None also while a dispatch mode observes operations (to measure memory, say): torch would
        conclude that the function cannot be compiled, and never compile it again.
        """
        if self.usable and _get_current_dispatch_mode() is None:
            try:
                if self._terms is None:
                    self._terms = torch.compile(_terms, dynamic=True)
                return self._terms(*arguments)
            except Exception as error:  # compilers fail in many ways, and this one is optional
                logger.info("nearest neighbours without torch.compile: %s", error)
                self.usable = False
        return None


# Compiled once, when first needed.
_compiled = functools.cache(Compiled)


def _terms(
    values: Tensor,
    reference: Tensor | None,
    pairs: tuple[Pairs, Pairs],
    floor_squared: float,
    neighbours: int,
) -> tuple[Tensor, Tensor]:
    """The sum over these columns, and its gradient."""
    rows, swaps = _ordered(list(values), pairs[0])
    known = None if reference is None else _ordered(list(reference), pairs[1])[0]
    total = torch.zeros_like(rows[0])
    slopes = [total] * len(rows)
    for index, row in enumerate(rows):
        distance, partners = _to_neighbour(rows, index, neighbours)
        squared = distance * distance + floor_squared
        if known is None:
            total = total + 0.5 * squared.log()
            factor = distance / squared
        else:
            gap = row - _nearest(known, row)
            nu, rho = squared.sqrt(), (gap * gap + floor_squared).sqrt()
            ratio = rho / (nu + TINY)
            total = total + (ratio + TINY).log()
            outer = 1 / ((ratio + TINY) * (nu + TINY))
            slopes[index] = slopes[index] + outer * gap / rho
            factor = -outer * ratio * distance / nu
        # A distance depends on both of its ends: the lower one gets the opposite gradient.
        for end, weight in partners:
            share = factor if weight is None else factor * weight
            up, down = (index, end) if end < index else (end, index)
            slopes[up] = slopes[up] + share
            slopes[down] = slopes[down] - share
    for low, high, in_order in reversed(swaps):
        slopes[low], slopes[high] = (
            torch.lerp(slopes[high], slopes[low], in_order),
            torch.lerp(slopes[low], slopes[high], in_order),
        )
    return total.sum(), torch.stack(slopes)


def _ordered(rows: list[Tensor], pairs: Pairs) -> tuple[list[Tensor], list[Swap]]:
    """Rows with every column in ascending order, and the comparisons that sorted them."""
    swaps: list[Swap] = []
    for low, high in pairs:
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


class Partner(NamedTuple):
    """A row that may be the k-th neighbour of another.

    Attributes:
        place: Index of the row.
        weight: One in columns where this row is the k-th neighbour, else zero; None means that it
            is in every column.
    """

    place: int
    weight: Tensor | None


def _to_neighbour(rows: list[Tensor], index: int, neighbours: int) -> tuple[Tensor, list[Partner]]:
    """Distance of one of the sorted rows to its k-th nearest row, and which row that is.

    A value and its k nearest are k + 1 consecutive entries: of all such windows, the one whose
    farther end is nearest. That end is the k-th neighbour.
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
    return (right - left).sign().clamp(min=0)


def _nearest(ordered: list[Tensor], values: Tensor) -> Tensor:
    """For each value, the nearest entry in the same column of the sorted rows."""
    nearest = ordered[0]
    for lower, upper in itertools.pairwise(ordered):
        beyond_middle = _less(0.5 * (lower + upper), values)
        nearest = torch.lerp(nearest, upper, beyond_middle)
    return nearest
