"""Filter-response norm, and with it a tensor that is added and the swish after that."""

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from bbh_studies.problems.cifar5.channels_innermost import fused_norm_pays


class FilterResponseNorm(nn.GroupNorm):
    """x / √(mean of x² over positions), then scale and shift, Singh & Krishnan (2020).

    It is instance norm without the subtraction of the mean. The authors take the larger of the
    result and a learnt threshold, in place of a ReLU.

    Args:
        channels: Number of channels.
        threshold: Whether to do so too; else the result is left as it is, for a ReLU after it.
    """

    def __init__(self, channels: int, threshold: bool = False):
        super().__init__(channels, channels, eps=1e-6)
        self.threshold = nn.Parameter(torch.zeros(channels)) if threshold else None

    def forward(
        self,
        input: Float[Tensor, "B C H W"],
        added: Float[Tensor, "B C H W"] | None = None,
        swish: bool = False,
    ) -> Float[Tensor, "B C H W"]:
        """Normalises every image and channel by itself; the result has the input's type.

        On a GPU all of this is one kernel forwards and one backwards, if there is a threshold and
        channels are innermost in memory. torch takes about ten.

        Args:
            input: What is normalised.
            added: What to add to the result, after the threshold.
            swish: Whether to apply swish (x · sigmoid(x)) to that.
        """
        if self.threshold is not None and fused_norm_pays(input, self.num_channels, added):
            return cast(
                Tensor,
                _FilterResponse.apply(
                    input, self.weight, self.bias, self.threshold, self.eps, added, swish
                ),
            )
        return filter_response_plain(
            input, self.weight, self.bias, self.threshold, self.eps, added, swish
        )


def filter_response_plain(
    images: Tensor,
    weight: Tensor,
    bias: Tensor,
    threshold: Tensor | None,
    eps: float,
    added: Tensor | None,
    swish: bool,
) -> Tensor:
    """Filter-response norm, addition and swish with torch's own operations."""
    # Where activations have half the bits, only these means need more. (Under autocast, square
    # would write all of its results in single precision.)
    power = (images * images).mean((-2, -1), keepdim=True, dtype=weight.dtype)
    factor = torch.rsqrt(power + eps) * weight.view(-1, 1, 1)
    outputs = images * factor.to(images.dtype) + bias.view(-1, 1, 1).to(images.dtype)
    if threshold is not None:
        outputs = torch.maximum(outputs, threshold.view(-1, 1, 1).to(images.dtype))
    if added is not None:
        outputs = outputs + added
    return F.silu(outputs) if swish else outputs


class _FilterResponse(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        weight: Tensor,
        bias: Tensor,
        threshold: Tensor,
        eps: float,
        added: Tensor | None,
        swish: bool,
    ) -> Tensor:
        from bbh_studies.problems.cifar5.filter_response_norm_triton import forward

        ctx.eps, ctx.swish = eps, swish
        # Not the output: swish takes the same value twice, so it does not tell its own slope.
        ctx.save_for_backward(images, weight, bias, threshold, added)
        return forward(images, weight, bias, threshold, eps, added, swish)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        from bbh_studies.problems.cifar5.filter_response_norm_triton import backward

        images, weight, bias, threshold, added = ctx.saved_tensors
        into_images, into_weight, into_bias, into_threshold, into_added = backward(
            gradients[0], images, weight, bias, threshold, ctx.eps, added, ctx.swish
        )
        return into_images, into_weight, into_bias, into_threshold, None, into_added, None
