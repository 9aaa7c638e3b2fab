"""What a network that was trained on one quantile predicts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.predictive.base import Predictive, check_level

_NOT_A_DISTRIBUTION = (
    "only one quantile of the observations was learned, not how they are distributed. Train one "
    "posterior for each end of an interval, with Quantile(0.05) and Quantile(0.95), or use another "
    "likelihood"
)


@dataclass(frozen=True, repr=False)
class QuantilePredictive(Predictive):
    """One quantile of the observations, and how uncertain it is.

    ``mean`` is the mean over weight draws of that quantile, not of the observations.

    Attributes:
        level: Which quantile: the share of observations below it.
        locs: The quantile according to every draw [S, B, …].
        scales: Scale of the loss for every draw [S, B, …]; it says nothing about observations.
    """

    level: float
    per_draw: ClassVar[tuple[str, ...]] = ("locs", "scales")

    locs: Float[Tensor, "S B *event"]
    scales: Float[Tensor, "S B *event"]

    not_here: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("interval", "quantiles", "total_std", "aleatoric_std", "entropy", "mutual_information"),
        _NOT_A_DISTRIBUTION,
    )

    @property
    def epistemic_std(self) -> Tensor:
        """Standard deviation of the quantile over the draws, which shrinks with more data."""
        return self.locs.std(0, correction=0)

    def band(self, coverage: float) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the values that this share of draws gives to the quantile.

        It is about where the quantile lies, and not about where observations lie.
        """
        check_level("coverage lies", coverage)
        # Not torch.quantile, which takes no more than 16 million numbers.
        ordered = self.locs.sort(0).values
        tail = (1 - coverage) / 2
        return _between(ordered, tail), _between(ordered, 1 - tail)

    def _uncertainty(self) -> str:
        return f"quantile {self.level:g}, on average epistemic_std {self.epistemic_std.mean():.3g}"


def _between(ordered: Tensor, level: float) -> Tensor:
    """The quantile of sorted draws, interpolated between the two nearest."""
    place = level * (len(ordered) - 1)
    below = min(int(place), len(ordered) - 1)
    above = min(below + 1, len(ordered) - 1)
    return torch.lerp(ordered[below], ordered[above], place - below)
