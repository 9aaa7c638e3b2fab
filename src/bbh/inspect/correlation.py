"""Pairs of weights: how strongly they go together."""

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

    They see straight lines only: weights that depend on one another along a curve may have none.

    Attributes:
        tensor: Its name.
        matrix: NaN where a weight does not vary.
        num_samples: Draws behind it.
    """

    tensor: str
    matrix: Float[Tensor, "K K"] = field(repr=False)
    num_samples: int

    @staticmethod
    def of(tensor: str, draws: Float[Tensor, "S K"]) -> "Correlation":
        """Of the first K weights of a tensor."""
        deviation = draws.double() - draws.double().mean(0)
        # Rounding would make a direction of a weight that is the same in all draws.
        deviation[:, draws.amin(0) == draws.amax(0)] = math.nan
        direction = deviation / deviation.norm(dim=0)
        matrix = (direction.T @ direction).clamp(-1, 1)
        return Correlation(tensor, matrix.cpu(), len(draws))

    @property
    def pairs(self) -> Float[Tensor, " P"]:
        """Every pair of weights that both vary, once."""
        upper = torch.triu_indices(len(self.matrix), len(self.matrix), offset=1)
        values = self.matrix[upper[0], upper[1]]
        return values[~values.isnan()]

    @property
    def strong_share(self) -> float | None:
        """Share of pairs with a correlation beyond ±0.5; None where there is no pair."""
        pairs = self.pairs
        return float((pairs.abs() > STRONG).double().mean()) if len(pairs) else None

    @property
    def independent_share(self) -> float:
        """What independent Gaussians would give at this number of draws."""
        return strong_by_chance(self.num_samples)

    def numbers(self) -> dict[str, float | int | None]:
        """For a record."""
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
        return 1.0  # a line goes through any two points
    # With r = sin θ the density is cos(θ)^(S − 3), without a pole.
    angle = np.linspace(0, math.pi / 2, 20_001)
    density = np.cos(angle) ** (num_samples - 3)
    strong = angle >= math.asin(STRONG)
    return float(np.trapezoid(density[strong], angle[strong]) / np.trapezoid(density, angle))
