# pyright: basic, reportInvalidTypeForm=false, reportMissingImports=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
"""Group norm with ReLU over images whose channels are innermost.

A program holds all positions of some channels of one image. The channels make whole groups, so it
computes statistics, result and gradient from one read.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Adjacent bytes that are read together; with fewer channels a part of each read would be wasted.
_SIDE_BY_SIDE = 32
_WARPS = 8
# Channels per program in the sums over images.
_CHANNELS = 16


@triton.jit
def _tile(positions, channels, POSITIONS: tl.constexpr, CHANNELS: tl.constexpr):
    """This program's channels, which of its entries exist, and where they are in memory."""
    position = tl.arange(0, POSITIONS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (position < positions)[:, None] & (channel < channels)[None, :]
    first = tl.program_id(0).to(tl.int64) * positions * channels
    return channel, inside, first + position[:, None] * channels + channel[None, :]


@triton.jit
def _per_group(sums, GROUPS: tl.constexpr, PER_GROUP: tl.constexpr):
    """Sums over the channels of each group, repeated for every channel of the group."""
    totals = tl.sum(tl.reshape(sums, (GROUPS, PER_GROUP)), axis=1)
    spread = tl.broadcast_to(totals[:, None], (GROUPS, PER_GROUP))
    return tl.reshape(spread, (GROUPS * PER_GROUP,))


@triton.jit
def _standardised(x, inside, count, eps, GROUPS: tl.constexpr, PER_GROUP: tl.constexpr):
    """Deviations from the group's mean over its standard deviation, and 1 over the latter."""
    mean = _per_group(tl.sum(x, axis=0), GROUPS, PER_GROUP) / count
    x = tl.where(inside, x - mean[None, :], 0.0)
    variance = _per_group(tl.sum(x * x, axis=0), GROUPS, PER_GROUP) / count
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
    count,
    eps,
    POSITIONS: tl.constexpr,
    GROUPS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    ADDED: tl.constexpr,
):
    channel, inside, place = _tile(positions, channels, POSITIONS, GROUPS * PER_GROUP)
    x = tl.load(images + place, inside, other=0.0).to(tl.float32)
    x, _ = _standardised(x, inside, count, eps, GROUPS, PER_GROUP)
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
    count,
    eps,
    POSITIONS: tl.constexpr,
    GROUPS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    ADDED: tl.constexpr,
):
    channel, inside, place = _tile(positions, channels, POSITIONS, GROUPS * PER_GROUP)
    x = tl.load(images + place, inside, other=0.0).to(tl.float32)
    g = tl.load(gradient + place, inside, other=0.0).to(tl.float32)
    x, scale = _standardised(x, inside, count, eps, GROUPS, PER_GROUP)
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
    shift = _per_group(plain * w, GROUPS, PER_GROUP) / count
    stretch = _per_group(along * w, GROUPS, PER_GROUP) / count
    g = (g * w[None, :] - shift[None, :] - x * stretch[None, :]) * scale[None, :]
    tl.store(into_images + place, g, inside)


@triton.jit
def _sum_images(rows, sums, images, channels, IMAGES: tl.constexpr, CHANNELS: tl.constexpr):
    """rows [2, images, channels] → sums [2, channels], always in the same order."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    first = tl.program_id(0) * images * channels
    total = tl.zeros((CHANNELS,), tl.float32)
    for start in range(0, images, IMAGES):
        image = start + tl.arange(0, IMAGES)
        inside = (image < images)[:, None] & (channel < channels)[None, :]
        place = first + image[:, None] * channels + channel[None, :]
        total += tl.sum(tl.load(rows + place, inside, other=0.0), axis=0)
    tl.store(sums + tl.program_id(0) * channels + channel, total, channel < channels)


def forward(
    images: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, added: Tensor | None
) -> Tensor:
    """relu(group_norm(images) + added), laid out as the images are."""
    outputs = torch.empty_like(images)
    grid, shape = _division(images, groups)
    _forward[grid](
        images,
        weight.contiguous(),
        bias.contiguous(),
        images if added is None else added,
        outputs,
        *_sizes(images, groups),
        eps,
        ADDED=added is not None,
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
    # Every image writes its share of the gradients for weight and bias; they are summed later.
    batch, channels = images.shape[:2]
    rows = torch.empty(2, batch, channels, device=images.device, dtype=torch.float32)
    sums = torch.empty(2, channels, device=images.device, dtype=torch.float32)
    grid, shape = _division(images, groups)
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
        *_sizes(images, groups),
        eps,
        ADDED=outputs is not None,
        **shape,
    )
    _sum_images[(2, triton.cdiv(channels, _CHANNELS))](
        rows, sums, batch, channels, IMAGES=128, CHANNELS=_CHANNELS, num_warps=4
    )
    return into_images, sums[0], sums[1], into_added


def _sizes(images: Tensor, groups: int) -> tuple[int, int, int]:
    channels, positions = images.shape[1], images.shape[2:].numel()
    return positions, channels, positions * channels // groups


def _division(images: Tensor, groups: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Number of programs over images and over channels, and the sizes of what each holds."""
    positions, channels, _ = _sizes(images, groups)
    per_group = channels // groups
    together = min(channels, max(per_group, _SIDE_BY_SIDE // images.element_size()))
    shape = {
        "POSITIONS": triton.next_power_of_2(positions),
        "GROUPS": together // per_group,
        "PER_GROUP": per_group,
        "num_warps": _WARPS,
    }
    return (len(images), channels // together), shape
