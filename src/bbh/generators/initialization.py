"""Initialisation of generators, which decides where generated weights start."""

import math
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bbh.generators.hypernetwork import Hypernetwork
from bbh.noise import GaussianNoise

# The number of noise draws to estimate means and variances of the hidden features with, and the
# number of slices to compute at once, which limits memory.
_PROBES = 256
_SLICES = 128
# A step of Adam changes an entry of the output layer by about the learning rate, and a weight by
# the sum of these changes over all hidden units. With entries that start at √units over this
# number, the sum is the same part of the weight's spread for layers of any width: about a tenth, at
# the default learning rate. With entries of order one a short training could hardly change the
# spread.
_QUICKNESS = 32


_skipped = ContextVar("skipped", default=False)


@contextmanager
def skipped_initialization() -> Generator[None]:
    """Within this context hypernetworks are built without initial values, to be filled later."""
    token = _skipped.set(True)
    try:
        yield
    finally:
        _skipped.reset(token)


def initialization_is_skipped() -> bool:
    """Whether initial values are not needed now."""
    return _skipped.get()


class Initialization(ABC):
    """Sets the initial parameters of a hypernetwork.

    Attributes:
        bias_per_weight: Whether every generated weight has its own output bias.
    """

    bias_per_weight: ClassVar[bool]

    @abstractmethod
    def apply(
        self,
        hypernetwork: Hypernetwork,
        values: Float[Tensor, " weights"],
        scale: float,
        noise: GaussianNoise,
    ) -> None:
        """Sets all parameters.

        Args:
            hypernetwork: The hypernetwork to initialise.
            values: The current values of the network's weights.
            scale: Root mean square of 1/√fan_in over these weights.
            noise: What the hypernetwork will get.
        """


@dataclass(frozen=True)
class Glorot(Initialization):
    """The paper's initialisation: Glorot-uniform layers and zero biases.

    Generated weights then start far below the scale at which networks train well.
    """

    bias_per_weight = False

    @torch.no_grad()
    def apply(
        self,
        hypernetwork: Hypernetwork,
        values: Float[Tensor, " weights"],
        scale: float,
        noise: GaussianNoise,
    ) -> None:
        """Draws all layers from Glorot's uniform distribution and sets biases to zero."""
        _glorot_trunk(hypernetwork)
        nn.init.xavier_uniform_(hypernetwork.output_weight)
        nn.init.zeros_(hypernetwork.output_bias)


@dataclass(frozen=True)
class FromNetwork(Initialization):
    """Generated weights start around the network's own values.

    A trained network thus starts at its trained weights, an untrained one at its own
    initialisation. Each weight has its own output bias, set so that the mean of the weight over z
    is the network's value. The standard deviation over z is ``spread`` / √fan_in on average over
    the weights of a hypernetwork. This size is a fixed factor (``gain``), and the entries of the
    output layer are of a size for which a step of the optimiser changes weights by a small part of
    their spread, the same for narrow and for wide hidden layers.

    Args:
        spread: Initial standard deviation in units of 1/√fan_in.
    """

    spread: float = 0.1
    bias_per_weight = True

    def __post_init__(self):
        if not self.spread > 0:
            raise ValueError(f"FromNetwork(spread={self.spread}): spread must be positive.")

    @torch.no_grad()
    def apply(
        self,
        hypernetwork: Hypernetwork,
        values: Float[Tensor, " weights"],
        scale: float,
        noise: GaussianNoise,
    ) -> None:
        """Initialises the hidden layers like Glorot, then scales the output layer to fit them."""
        _glorot_trunk(hypernetwork)
        head = hypernetwork.head
        probes = noise.encoded(torch.randn(_PROBES, noise.dim))
        means: list[Tensor] = []
        variances: list[Tensor] = []
        for first in range(0, head.slices, _SLICES):
            features = hypernetwork.features(probes, first, first + _SLICES)
            means.append(features.mean(0))
            variances.append(features.var(0).sum(1))
        # Var_z[a·h] = aᵀ Cov(h) a, whose mean over a ~ N(0, I) is tr Cov(h).
        feature_scale = torch.cat(variances).mean().sqrt()
        entries = math.sqrt(hypernetwork.output_weight.shape[1]) / _QUICKNESS
        hypernetwork.gain.copy_(self.spread * scale / (feature_scale * entries))
        hypernetwork.output_weight.normal_(std=entries)
        offset = hypernetwork.gain * torch.cat(means) @ hypernetwork.output_weight.T
        offset = offset.flatten()[: head.num_weights]
        hypernetwork.output_bias.copy_(values - offset)


def _glorot_trunk(hypernetwork: Hypernetwork) -> None:
    for layer in hypernetwork.layers:
        assert isinstance(layer, nn.Linear)
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
