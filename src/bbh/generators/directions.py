"""Kernels whose rows or columns each move along a line: two parameters a weight, a cheap KL."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bbh import checks
from bbh.generators.base import Generator, fan_in_scale
from bbh.generators.module import GeneratorModule
from bbh.generators.trunks import Trunks
from bbh.noise import GaussianNoise
from bbh.samples import Line, Params, Shapes, TensorTable, size


@dataclass(frozen=True)
class Directions(Generator):
    """w = m + s·h(z): every weight has its own m and s, and the weights of a unit share their h.

    A kernel is taken as the matrix [outputs, everything else], and its units are its rows or its
    columns, whichever are more; each entry of a vector (a bias) is a unit. A unit's weights move
    together along the line that their s give, and a small network says how far.

    The generator has two parameters for each weight and ``hidden[-1]`` more for each unit. And
    since all weights of a unit have the same distribution up to m and s, the KL needs draws of the
    few h only: ``NearestNeighbourEntropy`` gives the same estimate as from draws of all weights, at
    a fraction of the cost.

    Generated weights start around the network's own values, with a standard deviation over z of
    ``spread`` / √fan_in.

    Args:
        hidden: Widths of the hidden layers of the small networks, one for each tensor.
        slope: Negative slope of their leaky ReLU.
        spread: Initial standard deviation of the weights in units of 1/√fan_in.
    """

    hidden: tuple[int, ...] = (16, 32)
    slope: float = 0.1
    spread: float = 0.1

    def __post_init__(self):
        checks.widths("hidden", self.hidden)
        checks.number("slope", self.slope)
        checks.number("spread", self.spread, positive=True)

    def num_parameters(self, shapes: Shapes, noise_dim: int) -> int:
        """The number of parameters of the generator, without building it."""
        widths = (noise_dim, *self.hidden)
        trunk = sum((a + 1) * b for a, b in itertools.pairwise(widths))
        units = sum(math.prod(unit_shape(shape)) for shape in shapes.values())
        return 2 * size(shapes) + trunk * len(shapes) + (self.hidden[-1] + 1) * units

    def make(self, values: Params, noise: GaussianNoise) -> "MovedKernels":
        """Builds the generator around the network's values."""
        shapes: Shapes = {name: value.shape for name, value in values.items()}
        units = [math.prod(unit_shape(shape)) for shape in shapes.values()]
        trunks = Trunks((noise.dim, *self.hidden), units, self.slope)
        scales = {name: self.spread * fan_in_scale((name,), shapes) for name in shapes}
        return MovedKernels(values, scales, trunks.to(next(iter(values.values()))))


def unit_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the h of a tensor, with ones where weights share it.

    >>> unit_shape((10, 500)), unit_shape((50, 20)), unit_shape((8, 3, 5, 5)), unit_shape((7,))
    ((1, 500), (50, 1), (1, 3, 5, 5), (7,))
    """
    rows, columns = (shape[0] if shape else 1), math.prod(shape[1:])
    if rows >= columns:
        return (rows, *[1] * len(shape[1:])) if shape else ()
    return (1, *shape[1:])


class MovedKernels(GeneratorModule):
    """Maps noise [S, G, Z] to weights {name: [S, *shape]}; every tensor has its own noise vector.

    Args:
        values: The network's weights, which are the initial means m.
        scales: The initial size of s for each tensor; its signs are random.
        trunks: The networks that make h.
    """

    has_lines = True

    def __init__(self, values: Params, scales: dict[str, float], trunks: Trunks):
        super().__init__()
        self.shapes = {name: value.shape for name, value in values.items()}
        self.num_groups = len(self.shapes)
        self.trunks = trunks
        self.means = TensorTable(values, trainable=True)
        self.directions = TensorTable(
            {name: scales[name] * _signs(value) for name, value in values.items()}, trainable=True
        )

    def groups(self) -> list[tuple[str, ...]]:
        """Every tensor has its own noise vector."""
        return [(name,) for name in self.shapes]

    def forward(self, noise: Float[Tensor, "S G Z"]) -> Params:
        """Generates all weights of all tensors."""
        return {name: torch.addcmul(*line) for name, line in self.lines(noise).items()}

    def lines(self, noise: Float[Tensor, "S G Z"]) -> dict[str, Line]:
        """m, s and draws of h for every tensor."""
        drawn = self.trunks(noise.transpose(0, 1))
        means, directions = self.means(), self.directions()
        return {
            name: Line(means[name], directions[name], moved.view(-1, *unit_shape(shape)))
            for (name, shape), moved in zip(self.shapes.items(), drawn, strict=True)
        }


def _signs(value: Tensor) -> Tensor:
    # Drawn on the CPU in single precision, so that a seed gives the same values on every device.
    return torch.empty(value.shape).bernoulli_().mul_(2).sub_(1).to(value)
