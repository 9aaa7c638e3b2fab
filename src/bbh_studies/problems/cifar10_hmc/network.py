"""ResNet-20 with filter-response norm and swish, as Izmailov et al. (2021) sampled its posterior.

It follows ``make_resnet20_frn_fn`` of their code. The network differs from that of He et al.: all
convolutions have biases, each is followed by filter-response norm with a learnt threshold *and*,
unless a sum follows, by swish; shortcuts that change the shape are convolutions with a norm of
their own.
"""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from bbh_studies.problems.cifar5.channels_innermost import laid_out
from bbh_studies.problems.cifar5.filter_response_norm import FilterResponseNorm
from bbh_studies.problems.cifar5.resnet import dropout_layer, initialise, stages

# By which their code normalises pixels in [0, 1].
_MEANS, _SCALE = (0.49, 0.48, 0.44), 0.2
# Their initialisation makes good for what cutting a normal at two deviations takes from its scale.
_GAIN = 2.0 / 0.87962566103423978**2


class FilterResponseResNet(nn.Module):
    """Takes pixels in [0, 1]; 274,042 parameters with three blocks and 16 channels.

    Args:
        classes: Number of outputs.
        blocks: Residual units per stage; the depth is 6 · blocks + 2.
        width: Channels of the first stage.
        dropout: Rate of a dropout layer between the two convolutions of a unit, which their network
            does not have; 0 for none.
    """

    def __init__(self, classes: int = 10, blocks: int = 3, width: int = 16, dropout: float = 0.0):
        super().__init__()
        self.register_buffer("means", torch.tensor(_MEANS).view(3, 1, 1))
        self.stem = _NormedConvolution(3, width)
        self.blocks = stages(partial(_Unit, dropout), blocks, width, first_stride=1)
        self.classify = nn.Linear(4 * width, classes)
        initialise(self, _GAIN)

    means: Tensor

    def forward(self, images: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C"]:
        """Logits for images in [0, 1]."""
        hidden = self.stem(laid_out((images - self.means) / _SCALE))
        return self.classify(self.blocks(hidden).mean((2, 3)))


class _NormedConvolution(nn.Module):
    """A convolution with biases, the norm after it, and swish after what may be added to that.

    A stride of two halves the side.
    """

    def __init__(
        self, inputs: int, outputs: int, stride: int = 1, size: int = 3, swish: bool = True
    ):
        super().__init__()
        border = (size - 1) // 2
        self.conv = nn.Conv2d(inputs, outputs, size, stride, border if stride == 1 else 0)
        self.norm = FilterResponseNorm(outputs, threshold=True)
        # As in JAX and TensorFlow: with a stride of two, zeros only come after the last pixel.
        self.at_end = 0 if stride == 1 else border
        self.swish = swish

    def forward(self, inputs: Tensor, added: Tensor | None = None) -> Tensor:
        if self.at_end:
            inputs = F.pad(inputs, (0, self.at_end, 0, self.at_end))
        return self.norm(self.conv(inputs), added, self.swish)


class _Unit(nn.Module):
    def __init__(self, dropout: float, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.first = _NormedConvolution(inputs, outputs, stride)
        self.dropout = dropout_layer(dropout)
        self.second = _NormedConvolution(outputs, outputs)
        self.shortcut = (
            nn.Identity()
            if stride == 1
            else _NormedConvolution(inputs, outputs, size=1, swish=False)
        )
        self.stride = stride

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.dropout(self.first(inputs))
        # A 1×1 convolution with a stride sees every second pixel. They are taken beforehand:
        # PyTorch 2.13 writes outside its memory on a CPU where such a convolution has a stride and
        # fewer than eight channels.
        taken = inputs[:, :, :: self.stride, :: self.stride]
        return self.second(hidden, self.shortcut(taken))
