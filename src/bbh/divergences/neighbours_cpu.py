"""Nearest-neighbour terms of every weight and their gradient, on a CPU.

With a C++ compiler the operations on rows become one loop. Otherwise torch does them in blocks of
columns that stay in the cache, whereas sorting and autograd would go through memory dozens of
times.
"""

import functools

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.divergences.neighbours_rows import terms
from bbh.divergences.one_loop import OneLoop, one_loop

# Columns per block: about twenty such rows fit in a core's cache, and two threads share the work.
_BLOCK = 2**16


def log_distances(
    values: Float[Tensor, "S D"],
    reference: Float[Tensor, "M D"] | None,
    floor: float,
    neighbours: int,
) -> tuple[Float[Tensor, ""], Float[Tensor, "S D"]]:
    """Σ log ν, or Σ log(ρ/ν) with a reference, over all draws and weights, and its gradient.

    The arguments are those of ``sum_log_distances``.
    """
    tables = [values] if reference is None else [values, reference]
    if all(table.dtype == torch.float32 for table in tables):
        loop = _compiled(tuple(map(len, tables)), floor, neighbours)
        if loop is not None:
            return loop(*tables)
    gradient = torch.empty_like(values)
    sums: list[Tensor] = []
    for first in range(0, values.shape[1], _BLOCK):
        part = slice(first, first + _BLOCK)
        block = [list(table[:, part]) for table in tables]
        column_sums, slopes = terms(*block, floor=floor, neighbours=neighbours)
        sums.append(column_sums.sum())
        torch.stack(slopes, out=gradient[:, part])
    return torch.stack(sums).sum(), gradient


@functools.cache
def _compiled(sizes: tuple[int, ...], floor: float, neighbours: int) -> OneLoop | None:
    """The loop for tables with these numbers of rows; None if it cannot be compiled."""
    return one_loop(functools.partial(terms, floor=floor, neighbours=neighbours), sizes)
