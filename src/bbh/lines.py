"""Tensors that move along lines, m + s·h, where all weights of a tensor share one random h."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.samples import Params


@dataclass(frozen=True)
class Lines:
    """All weights of a network as m + s·h.

    Attributes:
        means: m, one for each weight.
        directions: s, one for each weight.
        moved: Draws of h, one for each tensor.
        counts: The number of weights of each tensor.
    """

    means: Params
    directions: Params
    moved: Float[Tensor, "S G"]
    counts: Float[Tensor, " G"]

    def weights(self) -> Params:
        """Draws of all weights, ``{name: [S, *shape]}``."""
        return {
            name: torch.addcmul(mean, self.directions[name], moved.view(-1, *[1] * mean.dim()))
            for (name, mean), moved in zip(self.means.items(), self.moved.unbind(1), strict=True)
        }
