"""Group norm, a tensor that is added to it, and the ReLU after that as one operation."""

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from bbh_studies.problems.cifar5.channels_innermost import fused_norm_pays


def group_norm_relu(
    images: Float[Tensor, "B C H W"],
    groups: int,
    weight: Float[Tensor, " C"],
    bias: Float[Tensor, " C"],
    eps: float,
    added: Float[Tensor, "B C H W"] | None = None,
) -> Float[Tensor, "B C H W"]:
    """relu(group_norm(images) + added).

    On a GPU it is one kernel forwards and one backwards, if channels are innermost in memory. torch
    takes half a dozen kernels, and lays channels out the other way first. The result has the
    images' type, under mixed precision as well, where torch's own result would be in single
    precision.
    """
    if fused_norm_pays(images, groups, added):
        return cast(Tensor, _GroupNormReLU.apply(images, groups, weight, bias, eps, added))
    return group_norm_relu_plain(images, groups, weight, bias, eps, added)


def group_norm_relu_plain(
    images: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, added: Tensor | None
) -> Tensor:
    """Group norm, addition and ReLU with torch's own operations."""
    hidden = F.group_norm(images, groups, weight, bias, eps)
    return F.relu(hidden if added is None else hidden + added)


class _GroupNormReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        groups: int,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        added: Tensor | None,
    ) -> Tensor:
        from bbh_studies.problems.cifar5.group_norm_triton import forward

        output = forward(images, groups, weight, bias, eps, added)
        ctx.groups, ctx.eps = groups, eps
        # If something was added, only the output tells where the ReLU let values pass.
        ctx.save_for_backward(images, weight, bias, None if added is None else output)
        return output

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        from bbh_studies.problems.cifar5.group_norm_triton import backward

        images, weight, bias, output = ctx.saved_tensors
        into_images, into_weight, into_bias, into_added = backward(
            gradients[0], images, ctx.groups, weight, bias, ctx.eps, output
        )
        return into_images, None, into_weight, into_bias, None, into_added
