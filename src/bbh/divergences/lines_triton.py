# pyright: basic, reportInvalidTypeForm=false, reportMissingImports=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
"""The KL of weights m + s·h and its gradient, as a Triton kernel that reads each m and s once."""

import torch
import triton
import triton.language as tl
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
    number,
    precision,
    floor,
    BLOCK: tl.constexpr,
):
    """Writes the slopes of some weights, and their share of the four sums."""
    first = precision * tl.load(moments)
    second = precision * tl.load(moments + moment_stride)
    # 64 bits: a tensor may have more than 2³¹ weights.
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < number
    m = tl.load(mean + place, inside, other=0.0)
    s = tl.load(direction + place, inside, other=0.0)
    length = s * s + floor * floor
    tl.store(mean_slope + place, precision * m + first * s, inside)
    tl.store(direction_slope + place, first * m + second * s - s / length, inside)
    row = sums + tl.program_id(0) * 4
    tl.store(row, precision * tl.sum(m * m, axis=0))
    tl.store(row + 1, precision * tl.sum(m * s, axis=0))
    tl.store(row + 2, precision * tl.sum(s * s, axis=0))
    tl.store(row + 3, tl.sum(tl.where(inside, 0.5 * tl.log(length), 0.0), axis=0))


def sums_and_slopes(
    mean: Tensor,
    direction: Tensor,
    mean_slope: Tensor,
    direction_slope: Tensor,
    moments: Tensor,
    precision: float,
    floor: float,
) -> Tensor:
    """Σ m²/σ², Σ m·s/σ², Σ s²/σ² and Σ log |s| of one tensor; fills ∂/∂m and ∂/∂s."""
    programs = triton.cdiv(len(mean), _BLOCK)
    sums = torch.empty(programs, 4, device=mean.device)
    _kernel[(programs,)](
        mean,
        direction,
        mean_slope,
        direction_slope,
        moments,
        moments.stride(0),
        sums,
        len(mean),
        precision,
        floor,
        BLOCK=_BLOCK,
    )
    return sums.sum(0)
