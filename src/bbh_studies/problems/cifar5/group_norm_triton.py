# pyright: basic, reportInvalidTypeForm=false, reportMissingImports=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
"""Group norm with ReLU over images whose channels are innermost.

The channels of a program make whole groups.
"""

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
def _per_group(sums, CHANNELS: tl.constexpr, PER_GROUP: tl.constexpr):
    """Sums over the channels of each group, repeated for every channel of the group."""
    GROUPS: tl.constexpr = CHANNELS // PER_GROUP
    totals = tl.sum(tl.reshape(sums, (GROUPS, PER_GROUP)), axis=1)
    spread = tl.broadcast_to(totals[:, None], (GROUPS, PER_GROUP))
    return tl.reshape(spread, (CHANNELS,))


@triton.jit
def _standardised(x, inside, count, eps, CHANNELS: tl.constexpr, PER_GROUP: tl.constexpr):
    """Deviations from the group's mean over its standard deviation, and 1 over the latter."""
    mean = _per_group(tl.sum(x, axis=0), CHANNELS, PER_GROUP) / count
    x = tl.where(inside, x - mean[None, :], 0.0)
    variance = _per_group(tl.sum(x * x, axis=0), CHANNELS, PER_GROUP) / count
    scale = 1.0 / tl.sqrt(variance + eps)
    return x * scale[None, :], scale


@triton.jit
def _forward(
    images,
    weight,
    bias,
    added,
    outputs,
    positions,
    channels,
    eps,
    POSITIONS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    ADDED: tl.constexpr,
):
    channel, inside, place = tile(positions, channels, POSITIONS, CHANNELS)
    count = positions * PER_GROUP
    x = tl.load(images + place, inside, other=0.0).to(tl.float32)
    x, _ = _standardised(x, inside, count, eps, CHANNELS, PER_GROUP)
    y = x * tl.load(weight + channel)[None, :] + tl.load(bias + channel)[None, :]
    if ADDED:
        y += tl.load(added + place, inside, other=0.0)
    # Not a maximum with zero, which would turn NaN into a number.
    tl.store(outputs + place, tl.where(y <= 0.0, 0.0, y), inside)


@triton.jit
def _backward(
    gradient,
    images,
    weight,
    bias,
    outputs,
    into_images,
    into_added,
    into_weight,
    into_bias,
    positions,
    channels,
    eps,
    POSITIONS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    ADDED: tl.constexpr,
):
    channel, inside, place = tile(positions, channels, POSITIONS, CHANNELS)
    count = positions * PER_GROUP
    x = tl.load(images + place, inside, other=0.0).to(tl.float32)
    g = tl.load(gradient + place, inside, other=0.0).to(tl.float32)
    x, scale = _standardised(x, inside, count, eps, CHANNELS, PER_GROUP)
    w = tl.load(weight + channel)
    if ADDED:
        passed = tl.load(outputs + place, inside, other=0.0) > 0.0
        g = tl.where(passed, g, 0.0)
        tl.store(into_added + place, g, inside)
    else:
        b = tl.load(bias + channel)
        g = tl.where(x * w[None, :] + b[None, :] > 0.0, g, 0.0)
    along, plain = tl.sum(g * x, axis=0), tl.sum(g, axis=0)
    row = tl.program_id(0) * channels + channel
    tl.store(into_weight + row, along)
    tl.store(into_bias + row, plain)
    # The norm undoes a shift and a stretch of the whole group, so their gradient is taken away.
    shift = _per_group(plain * w, CHANNELS, PER_GROUP) / count
    stretch = _per_group(along * w, CHANNELS, PER_GROUP) / count
    g = (g * w[None, :] - shift[None, :] - x * stretch[None, :]) * scale[None, :]
    tl.store(into_images + place, g, inside)


def forward(
    images: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, added: Tensor | None
) -> Tensor:
    """relu(group_norm(images) + added), laid out as the images are."""
    outputs = torch.empty_like(images)
    per_group = images.shape[1] // groups
    grid, shape = division(images, per_group)
    _forward[grid](
        images,
        weight.contiguous(),
        bias.contiguous(),
        images if added is None else added,
        outputs,
        *sizes(images),
        eps,
        ADDED=added is not None,
        PER_GROUP=per_group,
        **shape,
    )
    return outputs


def backward(
    gradient: Tensor,
    images: Tensor,
    groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    outputs: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients for images, weight, bias and, if something was added, for that."""
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    into_images = torch.empty_like(images)
    into_added = None if outputs is None else torch.empty_like(images)
    rows = empty_rows(images, kinds=2)
    per_group = images.shape[1] // groups
    grid, shape = division(images, per_group)
    _backward[grid](
        gradient,
        images,
        weight.contiguous(),
        bias.contiguous(),
        images if outputs is None else outputs,
        into_images,
        images if into_added is None else into_added,
        rows[0],
        rows[1],
        *sizes(images),
        eps,
        ADDED=outputs is not None,
        PER_GROUP=per_group,
        **shape,
    )
    into_weight, into_bias = sum_images(rows)
    return into_images, into_weight, into_bias, into_added
