"""Residual networks for CIFAR: that of He et al., and the one in the paper's code.

Both take pixels in [0, 1] and bring them to their own scale themselves, so that a network is a
function of images, for attacks as well, and loaders need not know which one they feed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from bbh_studies.datasets.cifar10 import MEANS, SCALES
from bbh_studies.problems.cifar5.channels_innermost import laid_out
from bbh_studies.problems.cifar5.filter_response_norm import FilterResponseNorm
from bbh_studies.problems.cifar5.group_norm import group_norm_relu

Norm = Callable[[int], nn.Module]
# Side of the images that the paper's code cuts out of CIFAR's.
PAPER_SIZE = 24
_GROUPS = 8
# The ε of the norms in the paper's code.
_PAPER_EPSILON = 1e-3


class StandardisedConv2d(nn.Conv2d):
    """Convolves with filters of mean 0 and variance 1, Qiao et al. (2019).

    Group norm trains faster with it. The filters have no scale of their own, since a norm follows.
    Methods that could draw weights for every single example draw once for the batch here, since
    filters are standardised before they meet an example.
    """

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B F height width"]:
        """Convolves with the standardised filters."""
        filters = self.weight.flatten(1)
        weight = F.layer_norm(filters, filters.shape[1:]).view_as(self.weight)
        return self._conv_forward(input, weight, self.bias)


def group_norm(channels: int) -> nn.Module:
    """Group norm. It has no running statistics, so weight draws need none of their own."""
    return nn.GroupNorm(math.gcd(_GROUPS, channels), channels)


def instance_norm(channels: int) -> nn.Module:
    """Instance norm: in the paper's code it is batch norm with virtual batches of one."""
    return nn.GroupNorm(channels, channels, eps=_PAPER_EPSILON)


NORMALISATIONS: dict[str, Norm] = {
    "group": group_norm,
    "filter_response": FilterResponseNorm,
    "batch": nn.BatchNorm2d,
    "instance": instance_norm,
    # As in the paper's code for hypernetworks: a prediction depends on the other images of a batch.
    "batch_statistics": partial(nn.BatchNorm2d, eps=_PAPER_EPSILON, track_running_stats=False),
}


@dataclass(frozen=True)
class Units:
    """What residual units are made of.

    Attributes:
        norm: Makes a normalisation layer from a number of channels.
        unit_dropout: Rate of a dropout layer between the two convolutions of a unit, as in the
            paper's later code; 0 for none.
        convolution_dropout: Rate of a dropout layer after every convolution, as in the code of the
            published numbers; 0 for none.
        convolution: Class of the convolutions in He's network, where a norm follows each.
    """

    norm: Norm = group_norm
    unit_dropout: float = 0.0
    convolution_dropout: float = 0.0
    convolution: type[nn.Conv2d] = nn.Conv2d

    def within(self) -> nn.Module:
        """The layer between the convolutions."""
        return dropout_layer(self.unit_dropout)

    def after(self) -> nn.Module:
        """The layer after a convolution."""
        return dropout_layer(self.convolution_dropout)


_GROUP_NORM, _INSTANCE_NORM = Units(), Units(instance_norm)


class ResNet(nn.Module):
    """The CIFAR network of He et al. (2016), with group norm instead of batch norm by default.

    Args:
        classes: Number of outputs.
        blocks: Residual blocks per stage; the depth is 6 · blocks + 2.
        width: Channels of the first stage.
        units: Norms and dropout.
    """

    def __init__(
        self, classes: int = 10, blocks: int = 5, width: int = 16, units: Units = _GROUP_NORM
    ):
        super().__init__()
        self.register_buffer("means", torch.tensor(MEANS).view(3, 1, 1))
        self.register_buffer("scales", torch.tensor(SCALES).view(3, 1, 1))
        self.conv = units.convolution(3, width, 3, padding=1, bias=False)
        self.dropout = units.after()
        self.norm = units.norm(width)
        self.blocks = stages(partial(_HeUnit, units), blocks, width, first_stride=1)
        self.classify = nn.Linear(4 * width, classes)
        initialise(self, gain=2.0)

    means: Tensor
    scales: Tensor

    def forward(self, images: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C"]:
        """Logits for images in [0, 1]."""
        images = laid_out((images - self.means) / self.scales)
        hidden = self.dropout(self.conv(images))
        hidden = self.blocks(_normed_relu(self.norm, hidden))
        return self.classify(hidden.mean((2, 3)))


class PaperResNet(nn.Module):
    """The network of the paper's code: pre-activation, three downsamplings from 24×24.

    462,693 weights and biases for five classes, without those of normalisation layers.

    Args:
        classes: Number of outputs.
        blocks: Residual blocks per stage.
        width: Channels of the first stage.
        units: Norms and dropout.
        final_norm: Normalise before the last layer; the paper's code does not for all methods.
    """

    def __init__(
        self,
        classes: int = 5,
        blocks: int = 5,
        width: int = 16,
        units: Units = _INSTANCE_NORM,
        final_norm: bool = True,
    ):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1)
        self.dropout = units.after()
        self.blocks = stages(partial(_PaperUnit, units), blocks, width, first_stride=2)
        self.norm = units.norm(4 * width) if final_norm else nn.Identity()
        self.classify = nn.Linear(4 * width, classes)
        initialise(self, gain=1.0)

    def forward(self, images: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C"]:
        """Logits for images in [0, 1], of which the central 24×24 pixels count."""
        hidden = self.dropout(self.conv(standardise(central_crop(images, PAPER_SIZE))))
        hidden = F.relu(self.norm(self.blocks(hidden)))
        return self.classify(hidden.mean((2, 3)))


def _normed_relu(norm: nn.Module, hidden: Tensor, added: Tensor | None = None) -> Tensor:
    """relu(norm(hidden) + added), as one operation for group norm."""
    if type(norm) is nn.GroupNorm and norm.affine:
        return group_norm_relu(hidden, norm.num_groups, norm.weight, norm.bias, norm.eps, added)
    hidden = norm(hidden)
    return F.relu(hidden if added is None else hidden + added)


def central_crop(images: Float[Tensor, "B C H W"], size: int) -> Float[Tensor, "B C size size"]:
    """The middle of images; images that already have this size stay as they are."""
    top, left = (images.shape[2] - size) // 2, (images.shape[3] - size) // 2
    return images[:, :, top : top + size, left : left + size]


def standardise(images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
    """Brings every image to mean 0 and deviation 1 over all its pixels, as TensorFlow does.

    The deviation that divides is at least that of an image with a single pixel off by one of 255
    levels; otherwise nearly flat images would be all noise.
    """
    smallest = 1 / (255 * math.sqrt(images[0].numel()))
    scales = images.std((1, 2, 3), correction=0, keepdim=True).clamp(min=smallest)
    return (images - images.mean((1, 2, 3), keepdim=True)) / scales


class _HeUnit(nn.Module):
    def __init__(self, units: Units, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = units.convolution(inputs, outputs, 3, stride, 1, bias=False)
        self.dropout1 = units.after()
        self.norm1 = units.norm(outputs)
        self.dropout_within = units.within()
        self.conv2 = units.convolution(outputs, outputs, 3, 1, 1, bias=False)
        self.dropout2 = units.after()
        self.norm2 = units.norm(outputs)
        self.stride = stride
        self.added = outputs - inputs

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.dropout1(self.conv1(inputs))
        # Dropout may follow the ReLU: multiplying by zeros or positive numbers commutes with it.
        hidden = self.dropout_within(_normed_relu(self.norm1, hidden))
        hidden = self.dropout2(self.conv2(hidden))
        return _normed_relu(self.norm2, hidden, self._shortcut(inputs))

    def _shortcut(self, inputs: Tensor) -> Tensor:
        """Option A of He et al.: every second pixel, and zeros in the new channels."""
        if self.stride == 1 and self.added == 0:
            return inputs
        taken = inputs[:, :, :: self.stride, :: self.stride]
        return F.pad(taken, (0, 0, 0, 0, 0, self.added))


class _PaperUnit(nn.Module):
    def __init__(self, units: Units, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.norm1 = units.norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride)
        self.dropout1 = units.after()
        self.norm2 = units.norm(outputs)
        self.dropout_within = units.within()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.dropout2 = units.after()
        self.stride = stride
        self.added = outputs - inputs

    def forward(self, inputs: Tensor) -> Tensor:
        # TensorFlow's SAME padding: for a stride of two and an even side it is all at the end.
        before = 1 if self.stride == 1 else 0
        hidden = F.pad(F.relu(self.norm1(inputs)), (before, 1, before, 1))
        hidden = self.norm2(self.dropout1(self.conv1(hidden)))
        hidden = self.dropout2(self.conv2(F.relu(self.dropout_within(hidden))))
        half = self.added // 2
        shortcut = F.avg_pool2d(inputs, self.stride) if self.stride > 1 else inputs
        return hidden + F.pad(shortcut, (0, 0, 0, 0, half, self.added - half))


def stages(
    make_unit: Callable[[int, int, int], nn.Module], blocks: int, width: int, *, first_stride: int
) -> nn.Sequential:
    """Three stages, each with twice the channels; the first unit of a stage may downsample."""
    units: list[nn.Module] = []
    channels = width
    for outputs, stride in ((width, first_stride), (2 * width, 2), (4 * width, 2)):
        for number in range(blocks):
            units.append(make_unit(channels, outputs, 1 if number else stride))
            channels = outputs
    return nn.Sequential(*units)


def dropout_layer(rate: float) -> nn.Module:
    """A dropout layer, or for a rate of 0 none."""
    # Not a dropout of rate zero: with layers that draw random numbers, weight draws cannot be run
    # together.
    return nn.Dropout(rate) if rate else nn.Identity()


def initialise(network: nn.Module, gain: float) -> None:
    """Kernels from a normal of variance gain / fan-in, cut at two deviations; biases zero."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            scale = math.sqrt(gain / module.weight[0].numel())
            nn.init.trunc_normal_(module.weight, std=scale, a=-2 * scale, b=2 * scale)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
