"""Correlations between pairs of weights."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

STRONG = 0.5


@dataclass(frozen=True)
class Correlation:
    """Pearson correlations of the weights of one tensor over the draws.

    They measure linear dependence only: weights that depend on each other along a curve may be
    uncorrelated.

    Attributes:
        tensor: Name of the tensor.
        matrix: The correlations, NaN where a weight does not vary.
        num_samples: The number of draws they are computed from.
    """

    tensor: str
    matrix: Float[Tensor, "K K"] = field(repr=False)
    num_samples: int

    @staticmethod
    def of(tensor: str, draws: Float[Tensor, "S K"]) -> "Correlation":
        """Correlations of the first K weights of a tensor."""
        deviation = draws.double() - draws.double().mean(0)
        # A weight that is equal in all draws is marked by hand: rounding errors would otherwise be
        # scaled up to a correlation.
        deviation[:, draws.amin(0) == draws.amax(0)] = math.nan
        direction = deviation / deviation.norm(dim=0)
        matrix = (direction.T @ direction).clamp(-1, 1)
        return Correlation(tensor, matrix.cpu(), len(draws))

    @property
    def pairs(self) -> Float[Tensor, " P"]:
        """The correlation of every pair of weights that both vary, each pair once."""
        upper = torch.triu_indices(len(self.matrix), len(self.matrix), offset=1)
        values = self.matrix[upper[0], upper[1]]
        return values[~values.isnan()]

    @property
    def strong_share(self) -> float | None:
        """Share of pairs with a correlation beyond ±0.5; None if there is no pair."""
        pairs = self.pairs
        return float((pairs.abs() > STRONG).double().mean()) if len(pairs) else None

    @property
    def independent_share(self) -> float:
        """The value of ``strong_share`` to expect of independent Gaussians with as many draws."""
        return strong_by_chance(self.num_samples)

    def numbers(self) -> dict[str, float | int | None]:
        """The numbers as a dictionary, ready for JSON."""
        return {
            "pairs": len(self.pairs),
            "share_beyond_0.5": self.strong_share,
            "independent_share": self.independent_share,
        }

    def __str__(self) -> str:
        if self.strong_share is None:
            return "correlation: no pair of weights varies"
        return (
            f"correlation: {self.strong_share:.1%} of {len(self.pairs):,} pairs beyond ±{STRONG:g} "
            f"(independent Gaussians: {self.independent_share:.1%})"
        )


def strong_by_chance(num_samples: int) -> float:
    """P(|r| > 0.5) for two independent Gaussians and S draws.

        density(r) ∝ (1 − r²)^((S − 4)/2), Fisher (1915)

    Examples:
        >>> [round(strong_by_chance(number), 4) for number in (2, 3, 10, 100)]
        [1.0, 0.6667, 0.1411, 0.0]
    """
    if num_samples == 2:
        return 1.0  # two points always lie on a line
    # With r = sin θ the density becomes cos(θ)^(S − 3), which has no pole.
    angle = np.linspace(0, math.pi / 2, 20_001)
    density = np.cos(angle) ** (num_samples - 3)
    strong = angle >= math.asin(STRONG)
    return float(np.trapezoid(density[strong], angle[strong]) / np.trapezoid(density, angle))
