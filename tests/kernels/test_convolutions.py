"""Convolutions as products: the same numbers and gradients as torch's convolution."""

import pytest
import torch
from torch.func import vmap
from torch.nn import functional as F

from bbh.kernels.convolutions import conv2d_as_product


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("stride", "padding"), [((1, 1), (0, 0)), ((2, 1), (1, 2)), ((2, 2), (1, 0))]
)
def test_values_and_gradients_under_vmap(stride, padding, bias):
    torch.manual_seed(0)
    inputs = torch.randn(3, 4, 2, 7, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 5, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    offset = torch.randn(3, 5, dtype=torch.float64, requires_grad=True) if bias else None
    parts = [inputs, weight] + ([offset] if bias else [])

    def convolution(x, w, b=None):
        return F.conv2d(x, w, b, stride, padding)

    def product(x, w, b=None):
        return conv2d_as_product(x, w, b, stride, padding)

    expected, outputs = vmap(convolution)(*parts), vmap(product)(*parts)
    torch.testing.assert_close(outputs, expected)
    cotangent = torch.randn_like(expected)
    for mine, other in zip(
        torch.autograd.grad(outputs, parts, cotangent),
        torch.autograd.grad(expected, parts, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)
