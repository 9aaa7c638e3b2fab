"""Kernels whose random part has a low rank: a generator not much larger than the network."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bbh import checks
from bbh.generators.base import Generator, fan_in_scale
from bbh.generators.module import GeneratorModule
from bbh.generators.trunk import Trunk
from bbh.noise import GaussianNoise
from bbh.samples import Params, Shapes, TensorTable, size

# Size of the entries of u and v at the start. A step of the optimiser changes every entry by about
# the learning rate, so smaller entries mean that training changes the spread of weights faster.
# With ±1 it stays too close to where it starts.
_ENTRIES = 0.25


@dataclass(frozen=True)
class LowRank(Generator):
    """W = M + Σ_k a_k(z)·u_k v_kᵀ for every kernel W; a small network makes the coefficients a(z).

    A kernel is taken as the matrix [outputs, everything else]. A vector (a bias) is m + B a(z). The
    generator has the network's own parameters, as means, and ``rank`` more for each row and column,
    where the other generators have tens or hundreds of parameters for each weight.

    Generated weights start around the network's own values, with a standard deviation over z of
    ``spread`` / √fan_in.

    Args:
        rank: The number of terms.
        hidden: Widths of the hidden layers of the network that makes the coefficients, one for all
            tensors.
        slope: Negative slope of its leaky ReLU.
        spread: Initial standard deviation of the weights in units of 1/√fan_in.
    """

    rank: int = 16
    hidden: tuple[int, ...] = (16, 32)
    slope: float = 0.1
    spread: float = 0.1

    def __post_init__(self):
        checks.whole("rank", self.rank, 1, "at least one term is needed")
        checks.widths("hidden", self.hidden)
        checks.number("slope", self.slope)
        checks.number("spread", self.spread, positive=True)

    @property
    def multiplications_per_weight(self) -> int:
        """One for each term."""
        return self.rank

    def num_parameters(self, shapes: Shapes, noise_dim: int) -> int:
        """The number of parameters of the generator, without building it."""
        trunk = Trunk.num_parameters(noise_dim, self.hidden, self.rank * len(shapes))
        factors = sum(sum(sides) for sides in map(_sides, shapes.values()))
        return size(shapes) + self.rank * factors + trunk

    def make(self, values: Params, noise: GaussianNoise) -> "LowRankKernels":
        """Builds the generator around the network's values."""
        shapes: Shapes = {name: value.shape for name, value in values.items()}
        like = next(iter(values.values()))
        trunk = Trunk(noise, self.hidden, [self.rank] * len(shapes), self.slope)
        scales = [self.spread * fan_in_scale((name,), shapes) for name in shapes]
        return LowRankKernels(values, scales, trunk.to(like))


def _sides(shape: Sequence[int]) -> tuple[int, ...]:
    """Rows and columns of a kernel as a matrix; the length alone for what is only a vector."""
    rows = shape[0] if shape else 1
    columns = math.prod(shape[1:])
    return (rows, columns) if rows > 1 and columns > 1 else (rows * columns,)


class LowRankKernels(GeneratorModule):
    """Maps noise [S, G, Z] to weights {name: [S, *shape]}; every tensor has its own noise vector.

    Args:
        values: The network's weights, which are the initial means.
        scales: The initial standard deviation of the weights of each tensor.
        trunk: The network that makes the coefficients.
    """

    def __init__(self, values: Params, scales: Sequence[float], trunk: Trunk):
        super().__init__()
        self.shapes = {name: value.shape for name, value in values.items()}
        self.num_groups = len(self.shapes)
        self.trunk = trunk
        self.rank = rank = trunk.outputs[0]
        self.means = TensorTable(values, trainable=True)
        # Entries that differ in sign only give all weights of a tensor about the same spread at
        # the start; a fixed factor of the coefficients makes it the one that is asked for.
        self.left = TensorTable({n: _start(v, 0, rank) for n, v in values.items()}, trainable=True)
        self.right = TensorTable(
            {n: _start(v, 1, rank) for n, v in values.items() if len(_sides(v.shape)) > 1},
            trainable=True,
        )
        gains = [
            scale / math.sqrt(rank) / _ENTRIES ** len(_sides(value.shape))
            for scale, value in zip(scales, values.values(), strict=True)
        ]
        gain = next(iter(values.values())).new_tensor(gains)
        self.register_buffer("gain", gain.repeat_interleave(rank))

    gain: Tensor

    def groups(self) -> list[tuple[str, ...]]:
        """Every tensor has its own noise vector."""
        return [(name,) for name in self.shapes]

    def forward(self, noise: Float[Tensor, "S G Z"]) -> Params:
        """Generates all weights of all tensors."""
        coefficients = (self.gain * self.trunk(noise)).split(self.rank, dim=1)
        means, left, right = self.means(), self.left(), self.right()
        weights: Params = {}
        for (name, shape), factors in zip(self.shapes.items(), coefficients, strict=True):
            mean, rows = means[name], left[name]
            if name in right:
                sides = (len(factors), *_sides(shape))
                columns = right[name].T.expand(len(factors), -1, -1)
                scaled = rows * factors.unsqueeze(1)
                made = torch.baddbmm(mean.view(sides[1:]).expand(sides), scaled, columns)
            else:
                made = torch.addmm(mean.flatten(), factors, rows.T)
            weights[name] = made.view(len(factors), *shape)
        return weights


def _start(value: Tensor, side: int, rank: int) -> Tensor:
    length = _sides(value.shape)[side]
    return ((torch.randint(2, (length, rank)) * 2 - 1) * _ENTRIES).to(value)
