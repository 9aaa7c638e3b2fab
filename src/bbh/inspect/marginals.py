"""Distributions of single weights over the draws, and whether they have a single mode."""

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bbh.inspect.dip import dip_p_value, dip_statistic

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Marginals:
    """Draws of a few weights of one tensor.

    Attributes:
        tensor: Name of the tensor.
        places: Index of each weight in the tensor.
        draws: Values of the weights.
    """

    tensor: str
    places: list[tuple[int, ...]]
    draws: Float[Tensor, "S K"] = field(repr=False)

    @staticmethod
    def of(tensor: str, shape: torch.Size, draws: Float[Tensor, "S K"]) -> "Marginals":
        """Marginals of the first K weights of a tensor."""
        places = [_place(index, shape) for index in range(draws.shape[1])]
        return Marginals(tensor, places, draws)


@dataclass(frozen=True)
class Bimodality:
    """Hartigan's dip of every weight that varies, and its p-value.

    A small p-value is evidence against a single mode. It does not tell the number of modes, and
    weights that are generated from the same noise are not independent evidence.

    Attributes:
        dips: Distance of each weight from the nearest unimodal distribution.
        p_values: Probability of a dip at least as large for a uniform distribution, which is
            conservative for other unimodal distributions. At least 0.001.
    """

    dips: Float[Tensor, " K"] = field(repr=False)
    p_values: Float[Tensor, " K"] = field(repr=False)

    @staticmethod
    def of(draws: Float[Tensor, "S K"]) -> "Bimodality":
        """Dips and p-values of the given weights, without those that do not vary."""
        columns = draws[:, draws.amin(0) < draws.amax(0)].double().cpu().numpy().T
        dips = [dip_statistic(column) for column in columns]
        return Bimodality(
            torch.tensor(dips, dtype=torch.float64),
            torch.tensor([dip_p_value(one, len(draws)) for one in dips], dtype=torch.float64),
        )

    @property
    def share(self) -> float | None:
        """Share of weights with p below 0.05, at most 0.05 on average if all are unimodal.

        Weights that share their noise have similar dips, so this is often close to 0 or 1.
        """
        return _mean(self.p_values < SIGNIFICANT)

    def numbers(self) -> dict[str, float | int | None]:
        """The numbers as a dictionary, ready for JSON."""
        return {
            "weights": len(self.dips),
            "share_below_0.05": self.share,
            "median_dip": float(self.dips.median()) if len(self.dips) else None,
        }

    def __str__(self) -> str:
        if self.share is None:
            return "modes: no weight varies"
        return (
            f"modes: {self.share:.0%} of {len(self.dips):,} weights dip too far for a single one "
            f"(p < {SIGNIFICANT:g}; of unimodal ones 5% at most are expected)"
        )


@dataclass(frozen=True)
class Kurtosis:
    """Excess kurtosis of every weight that varies: 0 for a Gaussian, −2 for two equal atoms.

    It is negative for flat or two-peaked distributions, and positive for heavy tails.

    Attributes:
        excess: Excess kurtosis of each weight.
        num_samples: The number of draws that each is computed from.
    """

    excess: Float[Tensor, " D"] = field(repr=False)
    num_samples: int

    @property
    def quantiles(self) -> tuple[float, float, float] | None:
        """Quantiles over the weights: 5 %, median and 95 %."""
        return quantiles(self.excess)

    @property
    def gaussian_mean(self) -> float:
        """Expected value for a Gaussian with as many draws; below 0, as samples lack far tails."""
        return -6 / (self.num_samples + 1)

    @property
    def gaussian_std(self) -> float:
        """Standard deviation for a Gaussian with as many draws: about √(24/S) if S is large."""
        number = self.num_samples
        variance = 24 * number * (number - 2) * (number - 3)
        return (variance / ((number + 1) ** 2 * (number + 3) * (number + 5))) ** 0.5

    def numbers(self) -> dict[str, float | int | list[float] | None]:
        """The numbers as a dictionary, ready for JSON."""
        return {
            "weights": len(self.excess),
            "quantiles": None if self.quantiles is None else list(self.quantiles),
            "gaussian_mean": self.gaussian_mean,
            "gaussian_std": self.gaussian_std,
        }

    def __str__(self) -> str:
        if self.quantiles is None:
            return "excess kurtosis: no weight varies"
        low, middle, high = self.quantiles
        return (
            f"excess kurtosis: median {middle:.2f}, nine of ten weights in {low:.2f} … {high:.2f} "
            f"(Gaussians: {self.gaussian_mean:.2f} ± {self.gaussian_std:.2f})"
        )


def quantiles(values: Tensor) -> tuple[float, float, float] | None:
    """5 %, median and 95 % of values; torch's own function refuses more than 16 million."""
    if not values.numel():
        return None
    low, middle, high = np.quantile(values.cpu().numpy(), (0.05, 0.5, 0.95))
    return float(low), float(middle), float(high)


def _place(index: int, shape: torch.Size) -> tuple[int, ...]:
    return tuple(int(one) for one in np.unravel_index(index, shape)) if shape else ()


def _mean(values: Tensor) -> float | None:
    return float(values.double().mean()) if values.numel() else None
