# pyright: basic, reportInvalidTypeForm=false, reportMissingImports=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
"""What the fused norms share: programs that hold some channels of one image, channels innermost.

A program holds all positions of its channels, so it computes statistics, result and gradient from
one read. Every image writes its own share of the gradients of a channel's parameters; the shares
are summed in a fixed order, so that gradients are the same numbers each time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Adjacent bytes that are read together; with fewer channels a part of each read would be wasted.
_SIDE_BY_SIDE = 32
_WARPS = 8
# Channels and images that are read at once in the sums over images.
_CHANNELS, _IMAGES = 16, 128


@triton.jit
def tile(positions, channels, POSITIONS: tl.constexpr, CHANNELS: tl.constexpr):
    """This program's channels, which of its entries exist, and where they are in memory."""
    position = tl.arange(0, POSITIONS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (position < positions)[:, None] & (channel < channels)[None, :]
    first = tl.program_id(0).to(tl.int64) * positions * channels
    return channel, inside, first + position[:, None] * channels + channel[None, :]


@triton.jit
def _sum_images(rows, sums, images, channels, IMAGES: tl.constexpr, CHANNELS: tl.constexpr):
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    first = tl.program_id(0) * images * channels
    total = tl.zeros((CHANNELS,), tl.float32)
    for start in range(0, images, IMAGES):
        image = start + tl.arange(0, IMAGES)
        inside = (image < images)[:, None] & (channel < channels)[None, :]
        place = first + image[:, None] * channels + channel[None, :]
        total += tl.sum(tl.load(rows + place, inside, other=0.0), axis=0)
    tl.store(sums + tl.program_id(0) * channels + channel, total, channel < channels)


def sum_images(rows: Tensor) -> Tensor:
    """[kinds, images, channels] → [kinds, channels], always added in the same order."""
    kinds, images, channels = rows.shape
    sums = rows.new_empty(kinds, channels)
    grid = (kinds, triton.cdiv(channels, _CHANNELS))
    _sum_images[grid](rows, sums, images, channels, IMAGES=_IMAGES, CHANNELS=_CHANNELS, num_warps=4)
    return sums


def empty_rows(images: Tensor, kinds: int) -> Tensor:
    """Room for the shares [kinds, images, channels] that ``sum_images`` sums."""
    return torch.empty(kinds, *images.shape[:2], device=images.device, dtype=torch.float32)


def sizes(images: Tensor) -> tuple[int, int]:
    """Number of positions and of channels of an image, as ``tile`` takes them."""
    return images.shape[2:].numel(), images.shape[1]


def division(images: Tensor, per_group: int = 1) -> tuple[tuple[int, int], dict[str, int]]:
    """Number of programs over images and over channels, and the size of the tile each holds.

    Args:
        images: What the programs hold.
        per_group: Number of channels that must be held together.
    """
    positions, channels = sizes(images)
    together = min(channels, max(per_group, _SIDE_BY_SIDE // images.element_size()))
    shape = {
        "POSITIONS": triton.next_power_of_2(positions),
        "CHANNELS": together,
        "num_warps": _WARPS,
    }
    return (len(images), channels // together), shape
