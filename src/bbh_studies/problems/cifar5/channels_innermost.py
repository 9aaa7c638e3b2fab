"""Images with channels innermost in memory, and where fused norms can run on them.

A fused norm is one Triton kernel forwards and one backwards. A program of it holds all positions of
some channels of one image, see ``image_tiles_triton``.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.triton_available import triton_available

# Most entries of an image's channels that a program can hold in registers.
_MOST = 2**14
# Most channels that a program takes, unless groups are larger: as many as are read together in
# bfloat16.
_TOGETHER = 16


def laid_out(images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
    """The same images, on a GPU with channels innermost; convolutions keep this layout."""
    if not images.is_cuda or _transformed():
        return images
    return images.contiguous(memory_format=torch.channels_last)


def fused_norm_pays(
    images: Float[Tensor, "B C H W"], groups: int, added: Float[Tensor, "B C H W"] | None
) -> bool:
    """Whether Triton kernels can normalise these images, with statistics for groups of channels.

    Args:
        images: What is normalised.
        groups: Number of groups; as many as channels if each has statistics of its own.
        added: What is added to the result, if anything.
    """
    channels, positions = images.shape[1], images.shape[2:].numel()
    largest = max(channels // groups, _TOGETHER) * positions
    return (
        images.is_cuda
        and not _transformed()
        and images.dtype in (torch.float32, torch.bfloat16)
        and _innermost(images)
        and (added is None or (_innermost(added) and added.dtype == images.dtype))
        and channels & (channels - 1) == 0
        and groups & (groups - 1) == 0
        and largest <= _MOST
        and triton_available()
    )


def _transformed() -> bool:
    """Whether torch.func transforms are active: their tensors cannot tell their layout."""
    return torch._C._are_functorch_transforms_active()  # pyright: ignore[reportPrivateUsage]


def _innermost(images: Tensor) -> bool:
    return images.is_contiguous(memory_format=torch.channels_last)
