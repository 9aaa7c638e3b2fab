"""Rows of kernels that move along lines, m + s·h, where all weights of a row share one random h."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.samples import Params


@dataclass(frozen=True)
class Lines:
    """All weights of a network as m + s·h.

    A row is what one output unit of a layer multiplies its inputs with: the first axis of a tensor
    counts its rows.

    Attributes:
        means: m, one for each weight.
        directions: s, one for each weight.
        moved: Draws of h, one for each row, those of one tensor after those of another.
        counts: The number of weights of each row.
    """

    means: Params
    directions: Params
    moved: Float[Tensor, "S R"]
    counts: Float[Tensor, " R"]

    def weights(self) -> Params:
        """Draws of all weights, ``{name: [S, *shape]}``."""
        parts = self.moved.split(rows_of(self.means.values()), dim=1)
        return {
            name: torch.addcmul(mean, self.directions[name], _beside(moved, mean))
            for (name, mean), moved in zip(self.means.items(), parts, strict=True)
        }


def num_rows(shape: Sequence[int]) -> int:
    """The length of the first axis; a single number is one row."""
    return shape[0] if len(shape) else 1


def row_size(shape: Sequence[int]) -> int:
    """The number of weights of one row."""
    return math.prod(shape[1:])


def rows_of(tensors: Iterable[Tensor]) -> list[int]:
    """The number of rows of each tensor."""
    return [num_rows(one.shape) for one in tensors]


def _beside(moved: Float[Tensor, "S rows"], mean: Tensor) -> Tensor:
    """h with one axis for each axis of a stack of the tensor's draws."""
    return moved.view(len(moved), *mean.shape[:1], *[1] * (mean.dim() - 1))
