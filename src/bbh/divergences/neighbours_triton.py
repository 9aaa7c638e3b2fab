# pyright: basic, reportInvalidTypeForm=false, reportMissingImports=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
"""Nearest-neighbour terms of every weight and their gradient, as a Triton kernel.

The S draws of a weight and all S² differences fit in registers. The kernel therefore reads the
values once and writes the gradient once, while sorting and autograd pass over memory many times.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Added to ν and to the ratio as in the authors' code.
_TINY = tl.constexpr(1e-8)


@triton.jit
def _nearest(differences, allowed, index, NEIGHBOURS: tl.constexpr):
    """One-hot position, along axis 1, of the k-th smallest difference."""
    far = float("inf")
    squares = tl.where(allowed, differences * differences, far)
    chosen = allowed
    for _ in tl.static_range(NEIGHBOURS):
        chosen = index == tl.argmin(squares, axis=1, keep_dims=True)
        squares = tl.where(chosen, far, squares)
    return chosen & allowed


@triton.jit
def _log_distances(
    values,
    reference,
    sums,
    gradient,
    floor_squared,
    num_weights,
    SAMPLES: tl.constexpr,
    PADDED: tl.constexpr,
    PRIOR: tl.constexpr,
    PADDED_PRIOR: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, PADDED)
    inside = (row < SAMPLES)[:, None] & (column < num_weights)[None, :]
    # 64 bits: draws of large networks have more than 2³¹ entries.
    place = row.to(tl.int64)[:, None] * num_weights + column[None, :]
    x = tl.load(values + place, inside, other=0.0)
    i = row[:, None, None]
    j = row[None, :, None]
    within = x[:, None, :] - x[None, :, :]
    allowed = (i != j) & (i < SAMPLES) & (j < SAMPLES) & (column == column)[None, None, :]
    neighbour = _nearest(within, allowed, j, NEIGHBOURS)
    to_neighbour = tl.where(neighbour, within, 0.0)
    step = tl.sum(to_neighbour, axis=1)
    squared = step * step + floor_squared
    if PRIOR == 0:
        # log ν and its slope.
        term = 0.5 * tl.log(squared)
        own = tl.zeros_like(x)
        factor = 1.0 / squared
    else:
        m = tl.arange(0, PADDED_PRIOR)
        in_prior = (m < PRIOR)[:, None] & (column < num_weights)[None, :]
        there = m.to(tl.int64)[:, None] * num_weights + column[None, :]
        p = tl.load(reference + there, in_prior, other=0.0)
        across = x[:, None, :] - p[None, :, :]
        k = m[None, :, None]
        known = (i < SAMPLES) & (k < PRIOR) & (column == column)[None, None, :]
        nearest = _nearest(across, known, k, 1)
        gap = tl.sum(tl.where(nearest, across, 0.0), axis=1)
        nu = tl.sqrt(squared)
        rho = tl.sqrt(gap * gap + floor_squared)
        ratio = rho / (nu + _TINY)
        # log(ρ/ν), and its slopes with respect to the differences behind ρ and behind ν.
        term = tl.log(ratio + _TINY)
        outer = 1.0 / ((ratio + _TINY) * (nu + _TINY))
        own = outer * gap / rho
        factor = -outer * ratio / nu
    # If all squared differences are infinite or NaN, the smallest may be an entry that is no
    # neighbour, and the term would look finite. A draw that large must make the sum NaN instead,
    # so that training notices.
    term = tl.where(4.0 * x * x < float("inf"), term, float("nan"))
    total = tl.sum(tl.sum(tl.where(inside, term, 0.0), axis=1), axis=0)
    tl.store(sums + tl.program_id(0), total)
    # A distance depends on both ends: the draw gets one gradient, its neighbour the opposite.
    slope = tl.where(neighbour, to_neighbour * factor[:, None, :], 0.0)
    away = tl.sum(slope, axis=1) + own
    pushed = tl.sum(slope, axis=0)
    tl.store(gradient + place, away - pushed, inside)


def log_distances(
    values: Tensor, reference: Tensor | None, floor: float, neighbours: int
) -> tuple[Tensor, Tensor]:
    """Σ log ν_k, or Σ log(ρ/ν) with a reference, over all entries; and its gradient in values."""
    num_samples, num_weights = values.shape
    prior = 0 if reference is None else len(reference)
    # Fewer columns for many draws, since S² differences per column must fit in registers.
    columns = 128 if max(num_samples, prior) <= 8 else 32
    programs = triton.cdiv(num_weights, columns)
    sums = torch.empty(programs, device=values.device)
    gradient = torch.empty_like(values)
    _log_distances[(programs,)](
        values,
        values if reference is None else reference,
        sums,
        gradient,
        floor**2,
        num_weights,
        SAMPLES=num_samples,
        PADDED=triton.next_power_of_2(num_samples),
        PRIOR=prior,
        PADDED_PRIOR=max(2, triton.next_power_of_2(max(prior, 1))),
        NEIGHBOURS=neighbours,
        COLUMNS=columns,
    )
    return sums.sum(), gradient
