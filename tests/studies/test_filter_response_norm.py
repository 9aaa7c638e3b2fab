"""Filter-response norm, threshold, addition and swish in one kernel: Triton's interpreter."""

import itertools
import math

import pytest
import torch

from bbh_studies.problems.cifar5 import filter_response_norm
from bbh_studies.problems.cifar5.filter_response_norm import filter_response_plain
from bbh_studies.problems.cifar10_hmc.network import FilterResponseResNet
from interpreter import run_interpreted

# Shapes that do not fill their tiles, and those of the study's network.
SMALL = [(1, 1, 1, 1), (3, 2, 5, 7), (2, 4, 2, 3), (3, 32, 4, 4)]
LARGE = [(3, 16, 32, 32), (1, 32, 16, 16), (3, 64, 8, 8)]
# More images than are summed at once.
MANY = (300, 8, 2, 2, True, True)
EPS = 1e-6


def with_options(shapes):
    """Every shape with and without something to add, with and without swish."""
    return [
        (*shape, *options)
        for shape, options in itertools.product(
            shapes, itertools.product((False, True), (False, True))
        )
    ]


def compare(forward, backward, batch, channels, height, width, added, swish, dtype=torch.float32):
    """Largest errors relative to the largest entry: of images, and of gradients of parameters.

    The first channel is zero in the first image, and so is every third row and column everywhere.
    Half of the thresholds are equal to the shift, so that zeros are ties. Among millions of other
    entries some would be closer to the threshold than single precision can tell: batches are small.
    """
    torch.manual_seed(channels)

    def numbers():
        values = 0.3 + torch.randn(batch, channels, height, width)
        return values.to(dtype).contiguous(memory_format=torch.channels_last)

    images, gradient = numbers(), numbers()
    images[:, :, ::3, ::3] = 0.0
    images[0, 0] = 0.0
    extra = numbers() if added else None
    # Draws may be cut out of larger tensors.
    weight, bias, threshold = torch.randn(channels, 3).unbind(1)
    threshold[::2] = bias[::2]
    outputs = forward(images, weight, bias, threshold, EPS, extra, swish)
    found = backward(gradient, images, weight, bias, threshold, EPS, extra, swish)
    assert outputs.stride() == images.stride()
    exact = [
        None if one is None else one.double().requires_grad_()
        for one in (images, weight, bias, threshold, extra)
    ]
    expected = filter_response_plain(*exact[:4], EPS, exact[4], swish)
    wanted = [one for one in exact if one is not None]
    slopes = torch.autograd.grad(expected, wanted, gradient.double())
    mine = [one for one in (outputs, *found) if one is not None]
    errors: dict[int, list[float]] = {4: [], 1: []}
    for one, other in zip(mine, (expected.detach(), *slopes), strict=True):
        assert one.dtype == (dtype if one.dim() == 4 else torch.float32)
        error = (one.double() - other).abs().max() / other.abs().max().clamp(min=1e-3)
        errors[one.dim()].append(error.item())
    return max(errors[4]), max(errors[1])


def random_network(width: int) -> FilterResponseResNet:
    """A small network whose biases, scales and thresholds differ from channel to channel."""
    torch.manual_seed(width)
    network = FilterResponseResNet(blocks=1, width=width)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return network


def compare_network(network, images, switch):
    """Compares outputs and gradients of a network with fused norms and with plain ones.

    Args:
        network: A network in single precision.
        images: Its inputs.
        switch: Called with whether to fuse.
    """
    results = {}
    for fused in (True, False):
        switch(fused)
        for half in (True, False):
            with torch.autocast(images.device.type, torch.bfloat16, enabled=half):
                outputs = network(images).float()
            slopes = torch.autograd.grad(outputs.square().sum(), tuple(network.parameters()))
            gradient = torch.cat([one.flatten() for one in slopes])
            results[fused, half] = outputs.detach(), gradient
    for kind, exact in enumerate(results[False, False]):

        def error(fused, half, kind=kind, exact=exact):
            return ((results[fused, half][kind] - exact).norm() / exact.norm()).item()

        # Sums over thousands of pixels in another order, through seven layers; an entry may come
        # out on the other side of its threshold.
        assert error(fused=True, half=False) < 2e-3
        # The fused norms round less often, but the interpreter cuts bits off instead of rounding.
        assert error(fused=True, half=True) < 3 * error(fused=False, half=True) < 0.3


def check_unusual(forward, backward):
    """Numbers that are not finite, and some that are far outside of swish's curve."""
    torch.manual_seed(0)
    images, gradient, extra = (
        torch.randn(3, 4, 2, 3).contiguous(memory_format=torch.channels_last) for _ in range(3)
    )
    weight, bias, threshold = torch.randn(3, 4)
    weight[2] *= 1e6
    threshold[2] = -1e30
    images[1, 0, 1, 1] = threshold[3] = math.nan
    parameters = (weight, bias, threshold)
    tensors = [one.clone().requires_grad_() for one in (images, *parameters, extra)]
    expected = filter_response_plain(*tensors[:4], EPS, tensors[4], True)
    slopes = torch.autograd.grad(expected, tensors, gradient)
    found = forward(images, *parameters, EPS, extra, True)
    # All of a channel, but no other image.
    assert found[:, 0].isnan().flatten(1).all(1).tolist() == [False, True, False]
    assert found[:, 1:3].isfinite().all()
    torch.testing.assert_close(found, expected, equal_nan=True)
    mine = backward(gradient, images, *parameters, EPS, extra, True)
    for one, other in zip(mine, slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def check_kernels(cases, before=""):
    """Runs cases, and code before them, through the interpreter."""
    printed = run_interpreted(
        "from studies.test_filter_response_norm import *\n"
        "from bbh_studies.problems.cifar5.filter_response_norm_triton import backward, forward\n"
        f"{before}\n"
        "for dtype in (torch.float32, torch.bfloat16):\n"
        f"    errors = [compare(forward, backward, *case, dtype) for case in {cases}]\n"
        "    print(*map(max, zip(*errors)))"
    )
    images, parameters, half_images, half_parameters = map(float, printed.split())
    assert max(images, parameters, half_parameters) < 1e-5
    # Results have eight bits; the interpreter cuts the others off.
    assert half_images < 2**-7


def test_kernels_through_tritons_interpreter():
    pytest.importorskip("triton", reason="Triton is not installed")
    check_kernels("with_options(SMALL)", "check_unusual(forward, backward)")


@pytest.mark.slow
def test_kernels_and_network_at_the_sizes_of_the_study():
    pytest.importorskip("triton", reason="Triton is not installed")
    check_kernels("with_options(LARGE) + [MANY]", "check_network_here()")


def check_network_here():
    """A whole network with the kernels, although this is not a GPU."""

    def pays(images, groups, added):
        both = (images,) if added is None else (images, added)
        assert all(one.is_contiguous(memory_format=torch.channels_last) for one in both)
        assert len({one.dtype for one in both}) == 1
        return True

    never = filter_response_norm.fused_norm_pays
    images = torch.rand(6, 3, 16, 16).contiguous(memory_format=torch.channels_last)

    def switch(fused):
        filter_response_norm.fused_norm_pays = pays if fused else never

    compare_network(random_network(width=8), images, switch)
