# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch offers operations on lists of tensors, which take few kernels, under private names only)
"""TensorFlow's RMSProp, also for a matrix whose gradient is a sum of a few outer products.

As in ``outer_adam``, the dense gradient of such a matrix is never formed. An update reads and
writes the matrix and its mean square once, and nothing else of that size.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.generators.factored.gradients import dense_blocks
from bbh.triton_available import triton_available


class RMSpropSettings(NamedTuple):
    """Settings of a step, see ``TensorFlowRMSprop``.

    Attributes:
        rate: Learning rate; a tensor if it is to be read on the device.
        decay: Factor on the mean square.
        eps: Added to the mean square under the root.
        skip: A tensor on the device: if it is one, nothing changes. None always takes the step.
    """

    rate: Tensor | float
    decay: float
    eps: float
    skip: Tensor | None


def rmsprop_(
    weights: list[Tensor],
    squares: list[Tensor],
    gradients: list[Tensor],
    settings: RMSpropSettings,
) -> None:
    """Takes one step in place for several tensors at once.

    Args:
        weights: The parameters.
        squares: The running mean squares of their gradients.
        gradients: Their gradients.
        settings: How to take the step.
    """
    # v ← v − (1 − decay) · (v − g²), which is a descent: torch's kernel for these can skip.
    excess = torch._foreach_addcmul(squares, gradients, gradients, -1)
    _descend(squares, excess, 1 - settings.decay, settings.skip)
    slopes = torch._foreach_add(squares, settings.eps)
    torch._foreach_rsqrt_(slopes)
    torch._foreach_mul_(slopes, gradients)
    _descend(weights, slopes, settings.rate, settings.skip)


def _descend(
    values: list[Tensor],
    slopes: list[Tensor] | tuple[Tensor, ...],
    rate: Tensor | float,
    skip: Tensor | None,
) -> None:
    """Subtracts rate · slope in place, unless the flag says to skip this."""
    torch._fused_sgd_(
        values,
        slopes,
        [],
        lr=rate,
        weight_decay=0.0,
        momentum=0.0,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
        found_inf=skip,
    )


def outer_rmsprop_(
    weight: Float[Tensor, "rows columns"],
    square: Float[Tensor, "rows columns"],
    left: Float[Tensor, "S rows"],
    right: Float[Tensor, "S columns"],
    settings: RMSpropSettings,
) -> None:
    """Takes one step in place, like ``rmsprop_`` with the gradient leftᵀ right.

    Args:
        weight: The matrix.
        square: The running mean square of its gradient.
        left: The left factor of the gradient.
        right: The right factor of the gradient.
        settings: How to take the step.
    """
    if weight.is_cuda and weight.dtype == torch.float32 and triton_available():
        from bbh.generators.factored.outer_rmsprop_triton import launch as update
    else:
        update = outer_rmsprop_plain_
    update(weight, square, left, right, settings)


def outer_rmsprop_plain_(
    weight: Tensor, square: Tensor, left: Tensor, right: Tensor, settings: RMSpropSettings
) -> None:
    """Takes the same step without Triton, on blocks of rows that fit in the cache."""
    for part, gradient in dense_blocks(left, right):
        rmsprop_([weight[part]], [square[part]], [gradient], settings)
