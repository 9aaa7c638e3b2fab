# pyright: basic, reportInvalidTypeForm=false, reportMissingImports=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
"""The KL of weights m + s·h and its gradient, as a Triton kernel that reads each m and s once."""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

# Weights of one program.
_BLOCK = 4096


@triton.jit
def _kernel(
    mean,
    direction,
    mean_slope,
    direction_slope,
    moments,
    moment_stride,
    sums,
    rows,
    columns,
    precision,
    floor,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Writes the slopes of some weights, and their share of their rows' four sums."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    is_row = row < rows
    first = precision * tl.load(moments + row, is_row, other=0.0)[:, None]
    second = precision * tl.load(moments + moment_stride + row, is_row, other=0.0)[:, None]
    # 64 bits: a tensor may have more than 2³¹ weights.
    place = row[:, None].to(tl.int64) * columns + column[None, :]
    inside = is_row[:, None] & (column < columns)[None, :]
    m = tl.load(mean + place, inside, other=0.0)
    s = tl.load(direction + place, inside, other=0.0)
    length = s * s + floor * floor
    tl.store(mean_slope + place, precision * m + first * s, inside)
    tl.store(direction_slope + place, first * m + second * s - s / length, inside)
    # [programs along columns, 4, rows]
    out = sums + tl.program_id(1) * 4 * rows + row
    tl.store(out, precision * tl.sum(m * m, axis=1), is_row)
    tl.store(out + rows, precision * tl.sum(m * s, axis=1), is_row)
    tl.store(out + 2 * rows, precision * tl.sum(s * s, axis=1), is_row)
    logs = tl.where(inside, 0.5 * tl.log(length), 0.0)
    tl.store(out + 3 * rows, tl.sum(logs, axis=1), is_row)


def sums_and_slopes(
    mean: Float[Tensor, "rows columns"],
    direction: Float[Tensor, "rows columns"],
    mean_slope: Float[Tensor, "rows columns"],
    direction_slope: Float[Tensor, "rows columns"],
    moments: Float[Tensor, "2 rows"],
    precision: float,
    floor: float,
) -> Float[Tensor, "4 rows"]:
    """Σ m²/σ², Σ m·s/σ², Σ s²/σ² and Σ log |s| of each row; fills ∂/∂m and ∂/∂s."""
    rows, columns = mean.shape
    width = min(triton.next_power_of_2(columns), _BLOCK)
    height = min(triton.next_power_of_2(rows), _BLOCK // width)
    grid = (triton.cdiv(rows, height), triton.cdiv(columns, width))
    sums = torch.empty(grid[1], 4, rows, device=mean.device)
    _kernel[grid](
        mean,
        direction,
        mean_slope,
        direction_slope,
        moments,
        moments.stride(0),
        sums,
        rows,
        columns,
        precision,
        floor,
        BLOCK_ROWS=height,
        BLOCK_COLUMNS=width,
    )
    return sums.sum(0)
