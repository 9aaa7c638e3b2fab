"""A small network that turns noise into a few numbers for every tensor."""

import itertools
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from bbh.noise import GaussianNoise

# The number of noise draws to estimate means and variances of outputs with.
_PROBES = 256


class Trunk(nn.Module):
    """A network with outputs for all tensors, side by side.

    The hidden layers are the same for all tensors. If tensors have noise of their own, each has
    hidden features of its own noise. At the start all outputs have mean 0 and variance 1 over
    z ~ N(0, I).

    Args:
        noise: The noise z; whether tensors share it decides how outputs are computed.
        hidden: Sizes of the hidden layers.
        outputs: The number of outputs for each tensor.
        slope: Negative slope of the leaky ReLU.
    """

    def __init__(
        self, noise: GaussianNoise, hidden: Sequence[int], outputs: Sequence[int], slope: float
    ):
        super().__init__()
        self.slope = slope
        self.shared = noise.shared
        self.outputs = list(outputs)
        layers = [nn.Linear(*sizes) for sizes in itertools.pairwise((noise.num_inputs, *hidden))]
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(layers)
        self.output = nn.Linear(hidden[-1], sum(outputs))
        nn.init.normal_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self._standardise(noise.encoded(torch.randn(_PROBES, noise.dim)))

    @staticmethod
    def num_parameters(noise_dim: int, hidden: Sequence[int], num_outputs: int) -> int:
        """The number of parameters, without building it."""
        return sum((a + 1) * b for a, b in itertools.pairwise((noise_dim, *hidden, num_outputs)))

    def forward(self, noise: Float[Tensor, "S G Z"]) -> Float[Tensor, "S U"]:
        """The outputs for all tensors, for every draw."""
        if self.shared:
            return self.output(self._features(noise[:, 0]))
        features = self._features(noise).unbind(1)
        matrices = self.output.weight.split(self.outputs)
        offsets = self.output.bias.split(self.outputs)
        each = zip(features, matrices, offsets, strict=True)
        return torch.cat([F.linear(*one) for one in each], dim=1)

    def _features(self, noise: Tensor) -> Tensor:
        for layer in self.layers:
            noise = F.leaky_relu(layer(noise), self.slope)
        return noise

    @torch.no_grad()
    def _standardise(self, noise: Float[Tensor, "S Z"]) -> None:
        # The moments of the features give those of all outputs, however many.
        features = self._features(noise)
        weight = self.output.weight
        scale = ((weight @ features.T.cov()) * weight).sum(1).sqrt()
        weight.div_(scale.unsqueeze(1))
        self.output.bias.copy_(-weight @ features.mean(0))
