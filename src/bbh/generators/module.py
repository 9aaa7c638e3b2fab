"""What every generator module does: map noise to weights, and say how far weights move with it."""

from abc import ABC, abstractmethod
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import jvp

from bbh.lines import Lines
from bbh.samples import Params, Shapes, flatten


class GeneratorModule(nn.Module, ABC):
    """Maps noise [S, G, Z] to weights {name: [S, *shape]}; ``forward`` and ``groups`` are to write.

    Every tensor depends on one of the G noise vectors only.

    Attributes:
        shapes: Names and shapes of the tensors it generates.
        num_groups: G, the number of noise vectors of a draw.
        has_lines: Whether every weight moves along a line, see ``lines``.
    """

    shapes: Shapes
    num_groups: int
    has_lines: bool = False

    @abstractmethod
    def forward(self, noise: Float[Tensor, "S G Z"]) -> Params:
        """Generates all weights of all tensors."""

    @abstractmethod
    def groups(self) -> list[tuple[str, ...]]:
        """For each noise vector, the names of the tensors generated from it."""

    def lines(self, noise: Float[Tensor, "S G Z"]) -> Lines:
        """The weights that ``forward`` makes, as m + s·h; only with ``has_lines``.

        The KL then needs draws of the few h, not of all weights.
        """
        del noise
        raise NotImplementedError(f"{type(self).__name__} does not move weights along lines.")

    def factored_parameters(self) -> list[nn.Parameter]:
        """Output matrices whose gradient is a sum of a few outer products, one for each draw."""
        return []

    def jacobian_gram(self, noise: Float[Tensor, "S G Z"]) -> Float[Tensor, "S G Z Z"]:
        """JᵀJ for each noise vector z, where J = ∂w/∂z holds the weights generated from it.

        This works for every generator, by one Jacobian-vector product for each dimension of the
        noise. It holds Z times as many numbers as the draws.
        """
        num_samples, num_groups, dim = noise.shape
        # Every draw is repeated Z times, and the k-th copy is moved along axis k of all its noise
        # vectors at once: each tensor sees only its own.
        axes = torch.eye(dim, dtype=noise.dtype, device=noise.device)
        axes = axes.repeat(num_samples, 1).unsqueeze(1).repeat(1, num_groups, 1)
        moved = cast(Params, jvp(self, (noise.repeat_interleave(dim, 0),), (axes,))[1])
        grams: list[Tensor] = []
        for names in self.groups():
            rows = flatten(moved, {name: self.shapes[name] for name in names})
            rows = rows.unflatten(0, (num_samples, dim))
            grams.append(rows @ rows.mT)
        return torch.stack(grams, dim=1)
