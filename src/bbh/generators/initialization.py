"""Where generated weights start."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bbh.generators.hypernetwork import Hypernetwork

# Noise draws to measure a fresh trunk with, and slices to hold at once while doing so.
_PROBES = 256
_SLICES = 128


class Initialization(ABC):
    """Fills a fresh hypernetwork."""

    bias_per_weight: ClassVar[bool]

    @abstractmethod
    def apply(
        self,
        hypernetwork: Hypernetwork,
        values: Float[Tensor, " weights"],
        scale: float,
    ) -> None:
        """Sets all parameters.

        Args:
            hypernetwork: To be filled.
            values: The network's own current weights.
            scale: 1/√fan_in, the root mean square over them.
        """


@dataclass(frozen=True)
class Glorot(Initialization):
    """The paper's: Glorot-uniform layers and zero biases.

    Generated weights then start far below the scale at which networks train well.
    """

    bias_per_weight = False

    @torch.no_grad()
    def apply(
        self,
        hypernetwork: Hypernetwork,
        values: Float[Tensor, " weights"],
        scale: float,
    ) -> None:
        """Glorot everywhere."""
        _glorot_trunk(hypernetwork)
        nn.init.xavier_uniform_(hypernetwork.output_weight)
        nn.init.zeros_(hypernetwork.output_bias)


@dataclass(frozen=True)
class FromNetwork(Initialization):
    """Weights start at the network's own values, spread over z relative to fan-in scale.

    A trained network starts where it is, a fresh one at its own initialisation. Each weight has
    an output bias of its own, set so that its mean over z is the network's weight; the standard
    deviation over z is ``spread`` / √fan_in on average over the weights of a hypernetwork. That
    size is in a fixed factor and the output layer itself is of order one, so that an optimiser's
    step changes the weights by a small part of their spread, however many hidden units push them
    together.

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
    ) -> None:
        """Glorot trunk, then an output layer measured against it."""
        _glorot_trunk(hypernetwork)
        head = hypernetwork.head
        noise = torch.randn(_PROBES, hypernetwork.noise_dim)
        means: list[Tensor] = []
        variances: list[Tensor] = []
        for first in range(0, head.slices, _SLICES):
            features = hypernetwork.features(noise, first, first + _SLICES)
            means.append(features.mean(0))
            variances.append(features.var(0).sum(1))
        # Var_z[a·h] = aᵀ Cov(h) a, whose mean over a ~ N(0, I) is tr Cov(h).
        feature_scale = torch.cat(variances).mean().sqrt()
        hypernetwork.gain.copy_(self.spread * scale / feature_scale)
        hypernetwork.output_weight.normal_()
        offset = hypernetwork.gain * torch.cat(means) @ hypernetwork.output_weight.T
        offset = offset.flatten()[: head.num_weights]
        hypernetwork.output_bias.copy_(values - offset)


def _glorot_trunk(hypernetwork: Hypernetwork) -> None:
    for layer in hypernetwork.layers:
        assert isinstance(layer, nn.Linear)
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
