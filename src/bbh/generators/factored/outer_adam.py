"""Adam for a matrix whose gradient is a sum of few outer products, which never has to exist.

The output layer of a hypernetwork makes S weight draws from S hidden vectors, so its gradient is
Σ_s left[s] ⊗ right[s]: S rows and S columns instead of hundreds of millions of numbers. An update
then reads and writes the matrix and its two moments once, and nothing else.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.triton_available import triton_available

# Rows of the dense gradient that exist at any time without Triton: small enough for a cache.
_BLOCK_BYTES = 2**20


class AdamSettings(NamedTuple):
    """Adam's numbers, as ``torch.optim.Adam`` names them."""

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
    """One step in place, as torch's fused Adam with the gradient leftᵀ right.

    Args:
        weight: The matrix.
        exp_avg: Its first moment; in bfloat16 it is rounded at random, right on average.
        exp_avg_sq: Its second moment, of the same type.
        left: One factor of the gradient.
        right: The other.
        rate: Learning rate; a tensor if it is to be read on the device.
        step: Number of this step, counted from 1.
        skip: One leaves everything as it is; None never does.
        settings: Adam's numbers.
    """
    if weight.is_cuda and weight.dtype == torch.float32 and triton_available():
        from bbh.generators.factored.outer_adam_triton import launch as update
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
    """The same with torch's own Adam, on blocks of rows whose gradient stays in the cache."""
    rows, columns = weight.shape
    block = max(1, _BLOCK_BYTES // (columns * weight.element_size()))
    update = torch._fused_adamw_ if settings.decoupled else torch._fused_adam_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    for first in range(0, rows, block):
        part = slice(first, first + block)
        # The very rows where they have the weight's type, else copies.
        moments = [one[part].to(weight.dtype) for one in (exp_avg, exp_avg_sq)]
        update(
            [weight[part]],
            [left[:, part].T @ right],
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


def rounded_at_random(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """In bfloat16: up or down, with probabilities that make the mean right."""
    noise = torch.randint(2**16, values.shape, dtype=torch.int32, device=values.device)
    # A bfloat16 is the upper half of a float32: noise below carries into it as often as it should.
    bits = values.float().view(torch.int32) + noise
    rounded = (bits & -(2**16)).view(torch.float32)
    # What is no number stays none: noise might carry it into the sign.
    return torch.where(values == values, rounded, values).bfloat16()
