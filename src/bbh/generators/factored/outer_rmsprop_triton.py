# pyright: basic, reportInvalidTypeForm=false, reportMissingImports=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
"""The Triton kernel for ``outer_rmsprop_``: it reads and writes matrix and mean square once."""

import triton
import triton.language as tl
from torch import Tensor

from bbh.generators.factored.outer_rmsprop import RMSpropSettings
from bbh.generators.factored.outer_triton import gradient_of_tile, on_device, tile, tiling


@triton.jit
def _update(
    weight,
    square,
    left,
    right,
    rate,
    skip,
    rows,
    columns,
    RANK: tl.constexpr,
    DECAY: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    if tl.load(skip) == 0.0:
        row, column, place, inside = tile(rows, columns, BLOCK_ROWS, BLOCK_COLUMNS)
        w = tl.load(weight + place, inside, other=0.0)
        v = tl.load(square + place, inside, other=0.0)
        gradient = gradient_of_tile(
            left, right, row, column, rows, columns, RANK, BLOCK_ROWS, BLOCK_COLUMNS
        )
        v = DECAY * v + (1.0 - DECAY) * gradient * gradient
        w = w - tl.load(rate) * gradient / tl.sqrt(v + EPS)
        tl.store(weight + place, w, inside)
        tl.store(square + place, v, inside)


def launch(
    weight: Tensor, square: Tensor, left: Tensor, right: Tensor, settings: RMSpropSettings
) -> None:
    """Runs the kernel; the arguments are those of ``outer_rmsprop_``."""
    grid, blocks = tiling(weight)
    _update[grid](
        weight,
        square,
        left.contiguous(),
        right.contiguous(),
        on_device(settings.rate, weight.device),
        on_device(settings.skip, weight.device),
        *weight.shape,
        RANK=len(left),
        DECAY=settings.decay,
        EPS=settings.eps,
        **blocks,
    )
