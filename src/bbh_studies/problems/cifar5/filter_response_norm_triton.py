# pyright: basic, reportInvalidTypeForm=false, reportMissingImports=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
"""Filter-response norm with threshold, addition and swish, over images with channels innermost."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bbh_studies.problems.cifar5.image_tiles_triton import (
    division,
    empty_rows,
    sizes,
    sum_images,
    tile,
)


@triton.jit
def _normalised(x, positions, eps):
    """x / √(mean of x² over positions + ε), and what x is multiplied by for that."""
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / positions + eps)
    return x * scale[None, :], scale


@triton.jit
def _larger(y, threshold):
    """Their maximum; NaN if one of them is."""
    return tl.maximum(y, threshold, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _forward(
    images,
    weight,
    bias,
    threshold,
    added,
    outputs,
    positions,
    channels,
    eps,
    POSITIONS: tl.constexpr,
    CHANNELS: tl.constexpr,
    ADDED: tl.constexpr,
    SWISH: tl.constexpr,
):
    channel, inside, place = tile(positions, channels, POSITIONS, CHANNELS)
    x = tl.load(images + place, inside, other=0.0).to(tl.float32)
    if ADDED:
        a = tl.load(added + place, inside, other=0.0)
    x, _ = _normalised(x, positions, eps)
    y = x * tl.load(weight + channel)[None, :] + tl.load(bias + channel)[None, :]
    y = _larger(y, tl.load(threshold + channel)[None, :])
    if ADDED:
        y += a
    if SWISH:
        y = y / (1.0 + tl.exp(-y))
    tl.store(outputs + place, y, inside)


@triton.jit
def _backward(
    gradient,
    images,
    weight,
    bias,
    threshold,
    added,
    into_images,
    into_added,
    into_weight,
    into_bias,
    into_threshold,
    positions,
    channels,
    eps,
    POSITIONS: tl.constexpr,
    CHANNELS: tl.constexpr,
    ADDED: tl.constexpr,
    SWISH: tl.constexpr,
):
    channel, inside, place = tile(positions, channels, POSITIONS, CHANNELS)
    x = tl.load(images + place, inside, other=0.0).to(tl.float32)
    g = tl.load(gradient + place, inside, other=0.0).to(tl.float32)
    if ADDED and SWISH:
        a = tl.load(added + place, inside, other=0.0)
    x, scale = _normalised(x, positions, eps)
    w, t = tl.load(weight + channel), tl.load(threshold + channel)[None, :]
    y = x * w[None, :] + tl.load(bias + channel)[None, :]
    if SWISH:
        z = _larger(y, t)
        if ADDED:
            z += a
        share = 1.0 / (1.0 + tl.exp(-z))
        g *= share * (1.0 + z * (1.0 - share))
    if ADDED:
        tl.store(into_added + place, g, inside)
    # The larger one gets the gradient. Where both are equal each gets half, as torch does.
    passed = g * tl.where(y == t, 0.5, tl.where(y < t, 0.0, 1.0))
    row = tl.program_id(0) * channels + channel
    tl.store(into_threshold + row, tl.sum(g - passed, axis=0))
    tl.store(into_bias + row, tl.sum(passed, axis=0))
    along = tl.sum(passed * x, axis=0)
    tl.store(into_weight + row, along)
    # The norm undoes a stretch of the whole channel, so its gradient is taken away.
    stretch = along / positions
    g = (passed - x * stretch[None, :]) * (w * scale)[None, :]
    tl.store(into_images + place, g, inside)


def forward(
    images: Tensor,
    weight: Tensor,
    bias: Tensor,
    threshold: Tensor,
    eps: float,
    added: Tensor | None,
    swish: bool,
) -> Tensor:
    """swish(max(norm(images), threshold) + added), laid out as the images are."""
    outputs = torch.empty_like(images)
    grid, shape = division(images)
    _forward[grid](
        images,
        weight.contiguous(),
        bias.contiguous(),
        threshold.contiguous(),
        images if added is None else added,
        outputs,
        *sizes(images),
        eps,
        ADDED=added is not None,
        SWISH=swish,
        **shape,
    )
    return outputs


def backward(
    gradient: Tensor,
    images: Tensor,
    weight: Tensor,
    bias: Tensor,
    threshold: Tensor,
    eps: float,
    added: Tensor | None,
    swish: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients for images, weight, bias, threshold and, if something was added, for that.

    What is compared with the threshold has not been rounded to the images' type. In bfloat16
    torch's own operations compare rounded numbers, which are equal more often.
    """
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    into_images = torch.empty_like(images)
    into_added = None if added is None else torch.empty_like(images)
    rows = empty_rows(images, kinds=3)
    grid, shape = division(images)
    _backward[grid](
        gradient,
        images,
        weight.contiguous(),
        bias.contiguous(),
        threshold.contiguous(),
        images if added is None else added,
        into_images,
        images if into_added is None else into_added,
        *rows,
        *sizes(images),
        eps,
        ADDED=added is not None,
        SWISH=swish,
        **shape,
    )
    into_weight, into_bias, into_threshold = sum_images(rows)
    return into_images, into_weight, into_bias, into_threshold, into_added
