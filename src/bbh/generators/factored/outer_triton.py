# pyright: basic, reportInvalidTypeForm=false, reportMissingImports=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
"""What the Triton kernels have in common that update a matrix from factors of its gradient.

Each program updates a tile of the matrix.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements of the matrix per program: sixteen per thread of four warps.
_TILE = 2048


@triton.jit
def tile(rows, columns, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
    """This program's rows and columns, where its entries are in memory, and which of them exist."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    # 64 bits: the largest matrices have more than 2³¹ elements.
    place = row.to(tl.int64)[:, None] * columns + column[None, :]
    return row, column, place, (row < rows)[:, None] & (column < columns)[None, :]


@triton.jit
def gradient_of_tile(
    left,
    right,
    row,
    column,
    rows,
    columns,
    RANK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """The entries of leftᵀ right at these rows and columns."""
    gradient = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    for s in tl.static_range(RANK):
        a = tl.load(left + s * rows + row, row < rows, other=0.0)
        b = tl.load(right + s * columns + column, column < columns, other=0.0)
        gradient += a[:, None] * b[None, :]
    return gradient


def tiling(matrix: Tensor) -> tuple[tuple[int, int], dict[str, Any]]:
    """The number of tiles in each direction, and the size of a tile for the kernel."""
    rows, columns = matrix.shape
    block_columns = min(triton.next_power_of_2(columns), 512)
    block_rows = _TILE // block_columns
    grid = (triton.cdiv(rows, block_rows), triton.cdiv(columns, block_columns))
    return grid, {"BLOCK_ROWS": block_rows, "BLOCK_COLUMNS": block_columns}


def on_device(number: Tensor | float | None, device: torch.device) -> Tensor:
    """A tensor from which a kernel reads the number; None stands for zero."""
    if isinstance(number, Tensor):
        return number
    return torch.full((), number or 0.0, device=device)
