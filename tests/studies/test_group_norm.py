"""Group norm with ReLU in one kernel: Triton's interpreter against double precision."""

import pytest
import torch

from bbh_studies.problems.cifar5.group_norm import group_norm_relu_plain
from interpreter import run_interpreted

CASES = [
    (batch, channels, groups, height, width, added)
    for batch, channels, groups in ((1, 1, 1), (2, 16, 8), (3, 32, 8), (2, 64, 1), (2, 4, 4))
    for height, width in ((2, 3), (4, 4), (5, 7))
    for added in (False, True)
]


def compare(forward, backward, batch, channels, groups, height, width, added, dtype=torch.float32):
    """Largest error of outputs and gradients, relative to the largest entry."""
    torch.manual_seed(channels)
    shape = (batch, channels, height, width)

    def numbers():
        values = 3 + torch.randn(shape)
        return values.to(dtype).contiguous(memory_format=torch.channels_last)

    images, gradient = numbers(), numbers()
    extra = numbers() - 3 if added else None
    # Draws may be cut out of larger tensors.
    weight, bias = torch.randn(channels, 2).unbind(1)
    outputs = forward(images, groups, weight, bias, 1e-5, extra)
    found = backward(gradient, images, groups, weight, bias, 1e-5, outputs if added else None)
    exact = [None if one is None else one.double().requires_grad_() for one in (images, extra)]
    scale = [weight.double().requires_grad_(), bias.double().requires_grad_()]
    expected = group_norm_relu_plain(exact[0], groups, *scale, 1e-5, exact[1])
    wanted = [exact[0], *scale] + ([exact[1]] if added else [])
    slopes = torch.autograd.grad(expected, wanted, gradient.double())
    assert outputs.stride() == images.stride()
    return max(
        ((mine.double() - other).abs().max() / other.abs().max().clamp(min=1e-3)).item()
        for mine, other in zip((outputs, *found), (expected.detach(), *slopes), strict=False)
    )


@pytest.mark.slow
def test_triton_kernels_through_their_interpreter():
    pytest.importorskip("triton", reason="Triton is not installed")
    errors = run_interpreted(
        "from studies.test_group_norm import *\n"
        "from bbh_studies.problems.cifar5.group_norm_triton import backward, forward\n"
        "cases = (*CASES, (300, 8, 2, 2, 2, True))\n"
        "print(max(compare(forward, backward, *case) for case in cases))\n"
        "print(max(compare(forward, backward, *case, torch.bfloat16) for case in CASES))"
    )
    single, half = map(float, errors.split())
    # Entries of order one, divided by standard deviations that a few of them may make small.
    assert single < 1e-4
    # Eight bits of results.
    assert half < 2e-2
