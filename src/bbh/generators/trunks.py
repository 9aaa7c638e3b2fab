"""Small networks that turn noise into a few numbers for every tensor."""

import itertools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

# The number of noise draws to estimate means and variances of outputs with.
_PROBES = 256


class Trunks(nn.Module):
    """One small network for each tensor; their hidden layers are computed in one batched product.

    At the start all outputs have mean 0 and variance 1 over z ~ N(0, I).

    Args:
        widths: Size of z and of the hidden layers.
        outputs: The number of outputs for each tensor.
        slope: Negative slope of the leaky ReLU.
    """

    def __init__(self, widths: Sequence[int], outputs: Sequence[int], slope: float):
        super().__init__()
        self.slope = slope
        self.outputs = list(outputs)
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for inputs, units in itertools.pairwise(widths):
            # Glorot's uniform distribution; all tensors' layers are in one parameter.
            bound = math.sqrt(6 / (inputs + units))
            weight = torch.empty(len(outputs), inputs, units).uniform_(-bound, bound)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(len(outputs), 1, units)))
        self.output_weight = nn.Parameter(torch.randn(sum(outputs), widths[-1]))
        self.output_bias = nn.Parameter(torch.zeros(sum(outputs)))
        self._standardise(torch.randn(_PROBES, widths[0]))

    def forward(self, noise: Float[Tensor, "G S Z"]) -> list[Float[Tensor, "S _"]]:
        """The outputs for every tensor, for every draw."""
        hidden = noise
        for weight, bias in zip(self.weights, self.biases, strict=True):
            hidden = F.leaky_relu(torch.baddbmm(bias, hidden, weight), self.slope)
        matrices = self.output_weight.split(self.outputs)
        offsets = self.output_bias.split(self.outputs)
        return [F.linear(*one) for one in zip(hidden, matrices, offsets, strict=True)]

    @torch.no_grad()
    def _standardise(self, noise: Float[Tensor, "S Z"]) -> None:
        raw = torch.cat(self(noise.expand(len(self.outputs), -1, -1)), dim=1)
        scale = raw.std(0)
        self.output_weight.div_(scale.unsqueeze(1))
        self.output_bias.copy_(-raw.mean(0) / scale)
