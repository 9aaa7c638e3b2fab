"""ResNet-20 with filter-response norm and swish: the network of Izmailov et al. (2021)."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

import bbh
from bbh.likelihoods import Categorical
from bbh.network import trainable_parameters
from bbh_studies.problems.cifar5.filter_response_norm import FilterResponseNorm
from bbh_studies.problems.cifar10_hmc.network import FilterResponseResNet


def small(**sizes: int | float) -> FilterResponseResNet:
    """A small network in double precision with all parameters drawn at random."""
    network = FilterResponseResNet(**{"blocks": 2, "width": 4, **sizes}).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    return network


def test_it_has_their_274042_parameters():
    network = FilterResponseResNet()
    assert sum(parameter.numel() for parameter in network.parameters()) == 274_042
    # Scale, shift and threshold of 784 channels of convolutions.
    norms = [one for one in network.modules() if isinstance(one, FilterResponseNorm)]
    assert sum(one.num_channels for one in norms) == 784
    assert sum(p.numel() for one in norms for p in one.parameters()) == 3 * 784
    assert len([one for one in network.modules() if isinstance(one, nn.Conv2d)]) == 21


def test_thresholds_are_applied_by_channel():
    norm = FilterResponseNorm(2, threshold=True)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, -1.0]))
        norm.bias.copy_(torch.tensor([0.0, 0.5]))
        norm.threshold.copy_(torch.tensor([1.0, -0.75]))
    images = torch.tensor([3.0, 4.0, 0.0, 0.0, 1.0, 1.0, -1.0, 1.0]).view(1, 2, 2, 2)
    root = math.sqrt(25 / 4 + 1e-6)
    # Zeros are raised to 1, and 0.5 − 1 is above −0.75.
    expected = torch.tensor([6 / root, 8 / root, 1.0, 1.0, -0.5, -0.5, 1.5, -0.5])
    torch.testing.assert_close(norm(images).flatten(), expected)


def convolve(inputs: np.ndarray, kernel: np.ndarray, bias: np.ndarray, stride: int) -> np.ndarray:
    """A convolution [H, W, in] → [H / stride, W / stride, out], written as its definition."""
    side, size = inputs.shape[0], kernel.shape[2]
    # SAME padding: as much as is missing, the smaller half of it first.
    missing = max((side // stride - 1) * stride + size - side, 0)
    before = missing // 2
    padded = np.zeros((side + missing, side + missing, inputs.shape[2]))
    padded[before : before + side, before : before + side] = inputs
    output = np.empty((side // stride, side // stride, len(kernel)))
    for row in range(side // stride):
        for column in range(side // stride):
            top, left = row * stride, column * stride
            patch = padded[top : top + size, left : left + size]
            output[row, column] = np.einsum("oihw,hwi->o", kernel, patch) + bias
    return output


def by_definition(weights: dict[str, np.ndarray], image: np.ndarray, blocks: int) -> np.ndarray:
    """The published network for one image [H, W, 3], layer by layer in NumPy."""

    def swish(values: np.ndarray) -> np.ndarray:
        return values / (1 + np.exp(-values))

    def layer(inputs: np.ndarray, name: str, stride: int = 1) -> np.ndarray:
        hidden = convolve(
            inputs, weights[f"{name}.conv.weight"], weights[f"{name}.conv.bias"], stride
        )
        power = (hidden**2).mean((0, 1))
        scaled = hidden / np.sqrt(power + 1e-6) * weights[f"{name}.norm.weight"]
        return np.maximum(scaled + weights[f"{name}.norm.bias"], weights[f"{name}.norm.threshold"])

    hidden = (image - np.array([0.49, 0.48, 0.44])) / 0.2
    hidden = swish(layer(hidden, "stem"))
    for stage in range(3):
        for block in range(blocks):
            name = f"blocks.{stage * blocks + block}"
            stride = 2 if stage > 0 and block == 0 else 1
            inside = swish(layer(hidden, f"{name}.first", stride))
            inside = layer(inside, f"{name}.second")
            shortcut = layer(hidden, f"{name}.shortcut", 2) if stride == 2 else hidden
            hidden = swish(shortcut + inside)
    return weights["classify.weight"] @ hidden.mean((0, 1)) + weights["classify.bias"]


def test_it_computes_the_published_definition():
    network = small()
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    weights = {name: value.detach().numpy() for name, value in network.named_parameters()}
    expected = [by_definition(weights, one, 2) for one in images.movedim(1, -1).numpy()]
    torch.testing.assert_close(network(images), torch.from_numpy(np.stack(expected)))


def test_it_starts_as_theirs_does():
    network = FilterResponseResNet()
    kernel = network.blocks[-1].second.conv.weight
    # The deviation itself is √(2 / fan-in), although the normal is cut.
    assert kernel.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.02)
    assert not any(one.bias.any() for one in network.modules() if isinstance(one, nn.Conv2d))
    assert network.stem.norm.weight.eq(1).all()
    assert not network.stem.norm.threshold.any()


def test_stacked_weights_run_together_as_one_by_one():
    network = small()
    images = torch.rand(3, 3, 16, 16, dtype=torch.float64)
    stacked = {
        name: torch.stack([value, value + 0.1 * torch.randn_like(value)])
        for name, value in trainable_parameters(network).items()
    }
    together = vmap(lambda weights: functional_call(network, weights, (images,)))(stacked)
    for index in range(2):
        weights = {name: value[index] for name, value in stacked.items()}
        torch.testing.assert_close(together[index], functional_call(network, weights, (images,)))


def test_half_the_bits_change_little_and_stay_half():
    torch.manual_seed(0)
    network, images = FilterResponseResNet(blocks=1, width=8), torch.rand(8, 3, 32, 32)
    kinds: list[torch.dtype] = []

    def seen(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        kinds.append(output.dtype)

    for module in network.modules():
        if isinstance(module, FilterResponseNorm):
            module.register_forward_hook(seen)
    exact = network(images).detach()
    kinds.clear()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = network(images).detach().float()
    # In single precision the memory and time of all activations would double.
    assert set(kinds) == {torch.bfloat16}
    assert F.cosine_similarity(exact.flatten(), rounded.flatten(), 0) > 0.999


def test_all_parameters_can_have_a_distribution():
    posterior = bbh.methods.bayes_by_hypernet(
        FilterResponseResNet(blocks=1, width=4), Categorical(), bayesian="*"
    )
    assert set(posterior.weights.shapes) == set(trainable_parameters(posterior.network))


def test_dropout_has_its_place():
    assert not [one for one in small().modules() if isinstance(one, nn.Dropout)]
    layers = [one for one in small(dropout=0.25).modules() if isinstance(one, nn.Dropout)]
    assert [one.p for one in layers] == [0.25] * 6
