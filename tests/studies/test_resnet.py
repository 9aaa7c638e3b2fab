"""The residual networks: their sizes, their layers, and stacked weights."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

import bbh
from bbh.likelihoods import Categorical
from bbh.network import select_bayesian, trainable_parameters
from bbh_studies.problems.cifar5.filter_response_norm import FilterResponseNorm
from bbh_studies.problems.cifar5.resnet import (
    NORMALISATIONS,
    PaperResNet,
    ResNet,
    StandardisedConv2d,
    Units,
    central_crop,
    instance_norm,
    standardise,
)


def num_parameters(network: nn.Module, names: list[str] | None = None) -> int:
    parameters = trainable_parameters(network)
    return sum(parameters[name].numel() for name in names or parameters)


def test_the_papers_network_has_462693_weights():
    network = PaperResNet()
    bayesian = select_bayesian(network, None)
    assert num_parameters(network, bayesian) == 462_693
    # Kernels and biases of 32 layers: one generator each, 64 in all.
    assert len(bayesian) == 64
    # Scales and shifts of the norms, with and without the final one.
    assert num_parameters(network) - 462_693 == 2_144 + 128
    assert num_parameters(PaperResNet(final_norm=False)) - 462_693 == 2_144


def test_it_downsamples_three_times():
    network = PaperResNet()
    sides = []
    for unit in network.blocks:
        unit.register_forward_hook(lambda module, inputs, output: sides.append(output.shape[1:]))
    assert network(torch.rand(2, 3, 32, 32)).shape == (2, 5)
    assert [tuple(one) for one in sides[::5]] == [(16, 12, 12), (32, 6, 6), (64, 3, 3)]
    assert len(sides) == 15


def test_hes_network_has_his_464154_weights():
    network = ResNet(classes=10, units=Units(nn.BatchNorm2d))
    # Known from every implementation with shortcuts that have no weights.
    assert num_parameters(network) == 464_154
    assert num_parameters(ResNet(classes=5)) == 464_154 - 325
    assert num_parameters(ResNet(classes=5), select_bayesian(ResNet(classes=5), None)) == 461_557
    # Group norm, filter-response norm and batch norm have as many scales and shifts.
    sizes = {num_parameters(ResNet(units=Units(norm))) for norm in NORMALISATIONS.values()}
    assert sizes == {464_154}


def test_norms_are_point_estimates_whatever_their_kind():
    for norm in NORMALISATIONS.values():
        names = select_bayesian(ResNet(blocks=1, units=Units(norm)), None)
        assert not [name for name in names if "norm" in name]


def test_shortcuts_of_units_with_silent_convolutions():
    """Zero kernels leave the shortcut alone: option A, and the paper's pooling."""
    he, paper = ResNet(blocks=1, width=4), PaperResNet(blocks=1, width=4)
    for network in (he, paper):
        for name, value in network.named_parameters():
            if "conv2" in name or ("norm2" in name and name.endswith("bias")):
                nn.init.zeros_(value)
    inputs = torch.rand(2, 4, 8, 8)
    passed = he.blocks[1](inputs)
    torch.testing.assert_close(passed[:, :4], inputs[:, :, ::2, ::2])
    assert not passed[:, 4:].any()
    passed = paper.blocks[1](inputs)
    torch.testing.assert_close(passed[:, 2:6], F.avg_pool2d(inputs, 2))
    assert not passed[:, :2].any()
    assert not passed[:, 6:].any()


def test_strides_begin_where_tensorflows_do():
    """A kernel that picks its first entry sees the pixels 0, 2, 4, … and no padding."""
    unit = PaperResNet(blocks=1, width=4).blocks[0]
    unit.norm1 = unit.norm2 = nn.Identity()
    nn.init.zeros_(unit.conv1.weight)
    nn.init.dirac_(unit.conv2.weight)
    with torch.no_grad():
        for channel in range(4):
            unit.conv1.weight[channel, channel, 0, 0] = 1
    inputs = torch.rand(1, 4, 8, 8)
    expected = inputs[:, :, ::2, ::2] + F.avg_pool2d(inputs, 2)
    torch.testing.assert_close(unit(inputs), expected)


def test_images_are_standardised_as_in_tensorflow():
    images = torch.rand(3, 3, 24, 24)
    found = standardise(images)
    torch.testing.assert_close(found.mean((1, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std((1, 2, 3), correction=0), torch.ones(3))
    # Brightness and contrast do not matter, and flat images are zero instead of noise.
    torch.testing.assert_close(standardise(0.3 * images + 0.5), found, atol=1e-4, rtol=1e-4)
    assert not standardise(torch.full((1, 3, 24, 24), 0.25)).any()
    # One pixel brighter by a level: its deviation is below the smallest one.
    one = torch.zeros(1, 1, 10, 10)
    one[0, 0, 0, 0] = 1 / 255
    smallest = 1 / (255 * 10)
    assert standardise(one).max().item() == pytest.approx(0.99 / 255 / smallest)


def test_the_middle_counts():
    images = torch.rand(2, 3, 32, 32)
    network = PaperResNet(blocks=1, width=4)
    around = images.clone()
    around[:, :, :4] = around[:, :, -4:] = 0.5
    torch.testing.assert_close(network(images), network(around))
    torch.testing.assert_close(network(images), network(images[:, :, 4:28, 4:28]))
    assert torch.equal(central_crop(images, 32), images)


def test_filter_response_norm_by_hand():
    norm = FilterResponseNorm(2)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, 1.0]))
        norm.bias.copy_(torch.tensor([0.0, 0.5]))
    images = torch.tensor([3.0, 4.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]).view(1, 2, 2, 2)
    first = 2 * torch.tensor([3.0, 4.0, 0.0, 0.0]) / math.sqrt(25 / 4 + 1e-6)
    expected = torch.cat([first, torch.full((4,), 1 / math.sqrt(1 + 1e-6) + 0.5)])
    torch.testing.assert_close(norm(images).flatten(), expected)


def test_instance_norm_is_pytorchs():
    images = torch.rand(2, 6, 5, 5)
    ours, theirs = instance_norm(6), nn.InstanceNorm2d(6, eps=1e-3)
    torch.testing.assert_close(ours(images), theirs(images))


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_predictions_depend_on_other_images_only_where_they_are_said_to(name):
    network = ResNet(blocks=1, width=8, units=Units(NORMALISATIONS[name])).eval()
    images = torch.rand(4, 3, 16, 16)
    alone, together = network(images[:1]), network(images)[:1]
    assert torch.allclose(alone, together, atol=1e-5) == (name != "batch_statistics")


@pytest.mark.parametrize("make", [ResNet, PaperResNet])
@pytest.mark.parametrize("name", NORMALISATIONS)
def test_stacked_weights_run_together_as_one_by_one(make, name):
    network = make(blocks=1, width=8, units=Units(NORMALISATIONS[name])).double().eval()
    images = torch.rand(3, 3, 24, 24, dtype=torch.float64)
    stacked = {
        key: torch.stack([value, value + 0.1 * torch.randn_like(value), 0.5 * value])
        for key, value in trainable_parameters(network).items()
    }
    together = vmap(lambda weights: functional_call(network, weights, (images,)))(stacked)
    for index in range(3):
        weights = {key: value[index] for key, value in stacked.items()}
        alone = functional_call(network, weights, (images,))
        torch.testing.assert_close(together[index], alone)


def test_standardised_filters_have_neither_mean_nor_scale():
    layer = StandardisedConv2d(2, 3, 3, bias=False).double()
    images = torch.rand(4, 2, 5, 5, dtype=torch.float64)
    before = layer(images)
    with torch.no_grad():
        layer.weight.mul_(torch.tensor([0.5, 2.0, 7.0]).view(3, 1, 1, 1)).add_(0.3)
    # Up to the small number that keeps the variance from zero.
    torch.testing.assert_close(layer(images), before, rtol=1e-3, atol=1e-3)
    # One entry in eighteen is 1, the others 0: (1 − 1/18) and −1/18 in deviations √17/18.
    with torch.no_grad():
        layer.weight.zero_()[:, 0, 1, 1] = 1
    middle, total = images[:, 0, 1:4, 1:4], F.unfold(images, 3).sum(1).view(4, 3, 3)
    expected = (middle - total / 18) * 18 / math.sqrt(17)
    torch.testing.assert_close(layer(images)[:, 0], expected, rtol=1e-3, atol=1e-3)


def test_posteriors_run_it_both_ways():
    posterior = bbh.methods.bayes_by_hypernet(ResNet(5, blocks=1, width=8), Categorical())
    images, samples = torch.rand(2, 3, 32, 32), posterior.sample(3)
    outputs = []
    for execution in (bbh.Loop(), bbh.Vmap()):
        posterior.execution = execution
        outputs.append(posterior(images, samples))
    torch.testing.assert_close(*outputs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("make", [ResNet, PaperResNet])
def test_dropout_in_both_placements(make):
    def layers(**rates: float) -> int:
        network = make(units=Units(**rates))
        return sum(isinstance(module, nn.Dropout) for module in network.modules())

    assert layers() == 0
    assert layers(unit_dropout=0.5) == 15
    assert layers(convolution_dropout=0.5) == 31


def test_kernels_start_at_fan_in_scale():
    for network, gain in ((ResNet(), 2.0), (PaperResNet(), 1.0)):
        kernel = network.blocks[-1].conv2.weight
        # A normal cut at two deviations keeps 0.8796 of its own.
        expected = 0.8796 * math.sqrt(gain / (64 * 9))
        assert kernel.std().item() == pytest.approx(expected, rel=0.02)
        assert kernel.abs().max().item() <= 2 * math.sqrt(gain / (64 * 9))
