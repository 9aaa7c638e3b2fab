"""Convolutions of many weight draws at once.

Under vmap a convolution whose inputs and kernel both differ between draws becomes one with a group
for each draw, for which cuDNN has slow kernels and many transpositions. As a product of patches
and kernels it is one batched matrix product.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal

from torch import Tensor
from torch._C._functorch import (  # pyright: ignore[reportMissingModuleSource]
    is_batchedtensor,
)
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class ConvolutionsAsProducts(TorchFunctionMode):
    """Within this context, two-dimensional convolutions with a batched kernel are products.

    Only where inputs are batched as well: over shared inputs draws are just more output channels,
    which a convolution does best. On a CPU nothing changes.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replaces a convolution that is better done as a product."""
        if func is F.conv2d and not kwargs and len(args) == 7:
            inputs, weight, *_, padding, dilation, groups = args
            plain = groups == 1 and padding != "same" and set(dilation) == {1}
            if plain and inputs.is_cuda and is_batchedtensor(inputs) and is_batchedtensor(weight):
                return conv2d_as_product(*args[:5])
        return func(*args, **(kwargs or {}))


def conv2d_as_product(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int] | Literal["valid"],
) -> Tensor:
    """``torch.nn.functional.conv2d`` for images [B, C, H, W], without dilation and groups."""
    height, width = weight.shape[-2:]
    if padding != "valid" and any(padding):
        inputs = F.pad(inputs, (padding[1], padding[1], padding[0], padding[0]))
    patches = inputs.unfold(2, height, stride[0]).unfold(3, width, stride[1])
    number, _, rows, columns, _, _ = patches.shape
    # [B·rows·columns, C·h·w] × [C·h·w, O].
    patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(number * rows * columns, -1)
    outputs = patches @ weight.flatten(1).T
    if bias is not None:
        outputs = outputs + bias
    return outputs.view(number, rows, columns, -1).permute(0, 3, 1, 2).contiguous()
