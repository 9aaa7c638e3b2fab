"""Adam for a matrix whose gradient is a sum of a few outer products.

The output layer of a hypernetwork makes S weight draws from S hidden vectors, so its gradient is
Σ_s left[s] ⊗ right[s]: S pairs of vectors instead of hundreds of millions of numbers. The dense
gradient is never formed. An update reads and writes the matrix and its two moments once, and
nothing else of that size.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.generators.factored.gradients import dense_blocks
from bbh.generators.factored.loops_cpu import AdamNumbers, loops_for
from bbh.triton_available import triton_available


class AdamSettings(NamedTuple):
    """Settings of Adam, named as in ``torch.optim.Adam``."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool


def outer_adam_(
    weight: Float[Tensor, "rows columns"],
    exp_avg: Float[Tensor, "rows columns"],
    exp_avg_sq: Float[Tensor, "rows columns"],
    left: Float[Tensor, "S rows"],
    right: Float[Tensor, "S columns"],
    *,
    rate: Tensor | float,
    step: Tensor,
    skip: Tensor | None,
    settings: AdamSettings,
) -> None:
    """Takes one step in place, like torch's fused Adam with the gradient leftᵀ right.

    Args:
        weight: The matrix.
        exp_avg: First moment of the matrix. In bfloat16 it is rounded at random, so that it is
            right on average.
        exp_avg_sq: Second moment of the matrix, of the same type as the first.
        left: The left factor of the gradient.
        right: The right factor of the gradient.
        rate: Learning rate; a tensor if it is to be read on the device.
        step: Number of this step, counted from 1.
        skip: A tensor on the device: if it is one, nothing changes. None always takes the step.
        settings: Settings of Adam.
    """
    if weight.is_cuda and weight.dtype == torch.float32 and triton_available():
        from bbh.generators.factored.outer_adam_triton import launch as update
    elif loops_for(left, weight, exp_avg, exp_avg_sq) is not None:
        update = outer_adam_loop_
    else:
        update = outer_adam_plain_
    update(weight, exp_avg, exp_avg_sq, left, right, rate, step, skip, settings)


def outer_adam_plain_(
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
    """Takes the same step with torch's own Adam, on blocks of rows that fit in the cache."""
    update = torch._fused_adamw_ if settings.decoupled else torch._fused_adam_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    for part, gradient in dense_blocks(left, right):
        # These are views if the moments have the type of the weight, else copies.
        moments = [one[part].to(weight.dtype) for one in (exp_avg, exp_avg_sq)]
        update(
            [weight[part]],
            [gradient],
            [moments[0]],
            [moments[1]],
            [],
            [step],
            amsgrad=False,
            lr=rate,
            beta1=settings.beta1,
            beta2=settings.beta2,
            weight_decay=settings.weight_decay,
            eps=settings.eps,
            maximize=False,
            grad_scale=None,
            found_inf=skip,
        )
        if exp_avg.dtype == torch.bfloat16:
            exp_avg[part] = rounded_at_random(moments[0])
            exp_avg_sq[part] = rounded_at_random(moments[1])


def outer_adam_loop_(
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
    """Takes the same step on a CPU in one compiled loop, which forms the gradient row by row."""
    loops = loops_for(left, weight, exp_avg, exp_avg_sq)
    assert loops is not None
    if skip is not None and float(skip) == 1:
        return
    number, rate, decay = float(step), float(rate), settings.weight_decay
    loops.adam_(
        weight,
        exp_avg,
        exp_avg_sq,
        left,
        right,
        AdamNumbers(
            rate=rate / (1 - settings.beta1**number),
            mean_share=1 - settings.beta1,
            decay=settings.beta2,
            square_share=1 - settings.beta2,
            root=math.sqrt(1 - settings.beta2**number),
            eps=settings.eps,
            shrink=1 - rate * decay if settings.decoupled else 1.0,
            pull=0.0 if settings.decoupled else decay,
        ),
    )


def rounded_at_random(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Rounds to bfloat16, up or down at random, so that the expected result is the value."""
    noise = torch.randint(2**16, values.shape, dtype=torch.int32, device=values.device)
    # A bfloat16 is the upper half of a float32. Uniform noise added to the lower half carries into
    # the upper half with the probability for rounding up.
    bits = values.float().view(torch.int32) + noise
    rounded = (bits & -(2**16)).view(torch.float32)
    # NaN stays NaN: noise might carry into its sign bit and make it a number.
    return torch.where(values == values, rounded, values).bfloat16()
