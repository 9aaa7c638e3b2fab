# pyright: basic, reportInvalidTypeForm=false, reportMissingImports=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
"""The Triton kernel for ``outer_adam_``: it reads and writes matrix and moments only once."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from bbh.generators.factored.outer_adam import AdamSettings
from bbh.generators.factored.outer_triton import gradient_of_tile, on_device, tile, tiling


@triton.jit
def _rounded(value, noise):
    """Rounds to bfloat16, the upper 16 bits of a float32, up or down at random."""
    bits = (value.to(tl.uint32, bitcast=True) + noise) & 0xFFFF0000
    # NaN stays NaN: noise might carry into its sign bit and make it a number.
    return tl.where(value == value, bits.to(tl.float32, bitcast=True), value).to(tl.bfloat16)


@triton.jit
def _hashed(number):
    """Hashes to 32 random-looking bits (Wellons' lowbias32).

    A real random generator would take longer than the update itself.
    """
    number = (number ^ (number >> 16)) * 0x7FEB352D
    number = (number ^ (number >> 15)) * 0x846CA68B
    return number ^ (number >> 16)


@triton.jit
def _update(
    weight,
    exp_avg,
    exp_avg_sq,
    left,
    right,
    rate,
    step,
    skip,
    rows,
    columns,
    RANK: tl.constexpr,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    LOG_BETA1: tl.constexpr,
    LOG_BETA2: tl.constexpr,
    EPS: tl.constexpr,
    WEIGHT_DECAY: tl.constexpr,
    DECOUPLED: tl.constexpr,
    ROUNDED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    if tl.load(skip) == 0.0:
        row, column, place, inside = tile(rows, columns, BLOCK_ROWS, BLOCK_COLUMNS)
        w = tl.load(weight + place, inside, other=0.0)
        m = tl.load(exp_avg + place, inside, other=0.0).to(tl.float32)
        v = tl.load(exp_avg_sq + place, inside, other=0.0).to(tl.float32)
        gradient = gradient_of_tile(
            left, right, row, column, rows, columns, RANK, BLOCK_ROWS, BLOCK_COLUMNS
        )
        learning_rate = tl.load(rate)
        if DECOUPLED:
            w = w * (1.0 - learning_rate * WEIGHT_DECAY)
        else:
            gradient += WEIGHT_DECAY * w
        m = m + (1.0 - BETA1) * (gradient - m)
        v = BETA2 * v + (1.0 - BETA2) * gradient * gradient
        # In double precision, since 1 − β₂ at the first step is only a thousandth.
        number = tl.load(step).to(tl.float64)
        correction1 = (1.0 - tl.exp(number * LOG_BETA1)).to(tl.float32)
        correction2 = (1.0 - tl.exp(number * LOG_BETA2)).to(tl.float32)
        scale = tl.sqrt(v) / tl.sqrt(correction2) + EPS
        w = w - learning_rate / correction1 * m / scale
        tl.store(weight + place, w, inside)
        if ROUNDED:
            # The noise differs between entries and between steps; each moment gets 16 bits of it.
            noise = _hashed(place.to(tl.uint32) ^ _hashed(number.to(tl.uint32)))
            m = _rounded(m, noise & 0xFFFF)
            v = _rounded(v, noise >> 16)
        tl.store(exp_avg + place, m, inside)
        tl.store(exp_avg_sq + place, v, inside)


def launch(
    weight: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    left: Tensor,
    right: Tensor,
    rate: Tensor | float,
    step: Tensor,
    skip: Tensor | None,
    settings: AdamSettings,
) -> None:
    """Runs the kernel; the arguments are those of ``outer_adam_``."""
    grid, blocks = tiling(weight)
    _update[grid](
        weight,
        exp_avg,
        exp_avg_sq,
        left.contiguous(),
        right.contiguous(),
        on_device(rate, weight.device),
        step,
        on_device(skip, weight.device),
        *weight.shape,
        RANK=len(left),
        BETA1=settings.beta1,
        BETA2=settings.beta2,
        LOG_BETA1=_log(settings.beta1),
        LOG_BETA2=_log(settings.beta2),
        EPS=settings.eps,
        WEIGHT_DECAY=settings.weight_decay,
        DECOUPLED=settings.decoupled,
        ROUNDED=exp_avg.dtype == torch.bfloat16,
        **blocks,
    )


def _log(beta: float) -> float:
    """Logarithm of β, also for β = 0, which Adam allows: the moment is then the gradient."""
    return math.log(beta) if beta > 0 else -math.inf
