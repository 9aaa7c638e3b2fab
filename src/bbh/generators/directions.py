"""Rows of kernels that each move along a line: two parameters a weight, and a cheap KL."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bbh import checks
from bbh.generators.base import Generator, fan_in_scale
from bbh.generators.module import GeneratorModule
from bbh.generators.trunk import Trunk
from bbh.lines import Lines, num_rows, row_size
from bbh.noise import GaussianNoise
from bbh.samples import Params, Shapes, TensorTable, size


@dataclass(frozen=True)
class Directions(Generator):
    """w = m + s·h(z): every weight has its own m and s, and all weights of a row share their h.

    A row is what one output unit of a layer multiplies its inputs with. It thus moves along a line
    in weight space, in a direction that is learned, and a small network, one for all rows, says how
    far.

    The generator has two parameters for each weight and a few for each row. And since all weights
    of a row have the same distribution up to m and s, the KL needs draws of h only:
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

    def num_parameters(self, shapes: Shapes, noise_dim: int) -> int:
        """The number of parameters of the generator, without building it."""
        rows = sum(map(num_rows, shapes.values()))
        return 2 * size(shapes) + Trunk.num_parameters(noise_dim, self.hidden, rows)

    def make(self, values: Params, noise: GaussianNoise) -> "MovedRows":
        """Builds the generator around the network's values."""
        shapes: Shapes = {name: value.shape for name, value in values.items()}
        trunk = Trunk(noise, self.hidden, [*map(num_rows, shapes.values())], self.slope)
        scales = [self.spread * fan_in_scale((name,), shapes) for name in shapes]
        return MovedRows(values, scales, trunk.to(next(iter(values.values()))))


class MovedRows(GeneratorModule):
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
        self.register_buffer("gain", self._of_rows(like.new_tensor(scales)))
        sizes = [row_size(shape) for shape in self.shapes.values()]
        self.register_buffer("counts", self._of_rows(like.new_tensor(sizes)), persistent=False)

    gain: Tensor
    counts: Tensor

    def groups(self) -> list[tuple[str, ...]]:
        """Every tensor has its own noise vector."""
        return [(name,) for name in self.shapes]

    def forward(self, noise: Float[Tensor, "S G Z"]) -> Params:
        """Generates all weights of all tensors."""
        return self.lines(noise).weights()

    def lines(self, noise: Float[Tensor, "S G Z"]) -> Lines:
        """m, s and draws of h for every row."""
        moved = self.gain * self.trunk(noise)
        return Lines(self.means(), self.directions(), moved, self.counts)

    def _of_rows(self, of_tensors: Float[Tensor, " G"]) -> Float[Tensor, " R"]:
        """The number of each tensor, repeated for all of its rows."""
        return of_tensors.repeat_interleave(torch.tensor(self.trunk.outputs).to(of_tensors.device))


def _signs(value: Tensor) -> Tensor:
    return torch.empty_like(value).bernoulli_().mul_(2).sub_(1)
