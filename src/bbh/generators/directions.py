"""Tensors that each move along a line: two parameters a weight, and a cheap KL."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bbh import checks
from bbh.generators.base import Generator, fan_in_scale
from bbh.generators.module import GeneratorModule
from bbh.generators.trunk import Trunk
from bbh.lines import Lines
from bbh.noise import GaussianNoise
from bbh.samples import Params, Shapes, TensorTable, size


@dataclass(frozen=True)
class Directions(Generator):
    """w = m + s·h(z): every weight has its own m and s, and all weights of a tensor share their h.

    A tensor thus moves along a line in weight space, in a direction that is learned, and a small
    network, one for all tensors, says how far.

    The generator has two parameters for each weight and a few for each tensor. And since all
    weights of a tensor have the same distribution up to m and s, the KL needs draws of h only:
    ``NearestNeighbourEntropy`` gives the same estimate as from draws of all weights, at a fraction
    of the cost.

    Generated weights start around the network's own values, with a standard deviation over z of
    ``spread`` / √fan_in.

    Args:
        hidden: Widths of the small network's hidden layers.
        slope: Negative slope of its leaky ReLU.
        spread: Initial standard deviation of the weights in units of 1/√fan_in.
    """

    hidden: tuple[int, ...] = (16, 32)
    slope: float = 0.1
    spread: float = 0.1

    def __post_init__(self):
        checks.widths("hidden", self.hidden)
        checks.number("slope", self.slope)
        checks.number("spread", self.spread, positive=True)

    @property
    def multiplications_per_weight(self) -> int:
        """That of its direction with the tensor's h."""
        return 1

    def num_parameters(self, shapes: Shapes, noise_dim: int) -> int:
        """The number of parameters of the generator, without building it."""
        return 2 * size(shapes) + Trunk.num_parameters(noise_dim, self.hidden, len(shapes))

    def make(self, values: Params, noise: GaussianNoise) -> "MovedTensors":
        """Builds the generator around the network's values."""
        shapes: Shapes = {name: value.shape for name, value in values.items()}
        trunk = Trunk(noise, self.hidden, [1] * len(shapes), self.slope)
        scales = [self.spread * fan_in_scale((name,), shapes) for name in shapes]
        return MovedTensors(values, scales, trunk.to(next(iter(values.values()))))


class MovedTensors(GeneratorModule):
    """Maps noise [S, G, Z] to weights {name: [S, *shape]}; every tensor has its own noise vector.

    Args:
        values: The network's weights, which are the initial means m.
        scales: The initial standard deviation of the weights of each tensor.
        trunk: The network that makes h.
    """

    has_lines = True

    def __init__(self, values: Params, scales: Sequence[float], trunk: Trunk):
        super().__init__()
        self.shapes = {name: value.shape for name, value in values.items()}
        self.num_groups = len(self.shapes)
        self.trunk = trunk
        self.means = TensorTable(values, trainable=True)
        self.directions = TensorTable(
            {name: _signs(value) for name, value in values.items()}, trainable=True
        )
        # A fixed factor of h, so that entries of s are of order one: a step of the optimiser then
        # changes them by a small part, as it does those of a hypernetwork's output layer.
        like = next(iter(values.values()))
        self.register_buffer("gain", like.new_tensor(scales))
        sizes = [value.numel() for value in values.values()]
        self.register_buffer("counts", like.new_tensor(sizes), persistent=False)

    gain: Tensor
    counts: Tensor

    def groups(self) -> list[tuple[str, ...]]:
        """Every tensor has its own noise vector."""
        return [(name,) for name in self.shapes]

    def forward(self, noise: Float[Tensor, "S G Z"]) -> Params:
        """Generates all weights of all tensors."""
        return self.lines(noise).weights()

    def lines(self, noise: Float[Tensor, "S G Z"]) -> Lines:
        """m, s and draws of h for every tensor."""
        moved = self.gain * self.trunk(noise)
        return Lines(self.means(), self.directions(), moved, self.counts)


def _signs(value: Tensor) -> Tensor:
    return torch.empty_like(value).bernoulli_().mul_(2).sub_(1)
