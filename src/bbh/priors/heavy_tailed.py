"""Priors with heavier tails than a Gaussian: most weights near zero, and a few large ones."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributions as td

from bbh.priors.base import ElementwisePrior, check_positive, scalar_like


@dataclass(frozen=True)
class Laplace(ElementwisePrior):
    """Density exp(−|w|/scale) / (2 scale): many weights near zero and a few large ones."""

    scale: float = 1.0

    def __post_init__(self):
        check_positive("Laplace", scale=self.scale)

    def distribution(self, like: Tensor) -> td.Distribution:
        """The Laplace distribution of torch, centred at zero."""
        return td.Laplace(
            scalar_like(like, 0.0), scalar_like(like, self.scale), validate_args=False
        )


@dataclass(frozen=True)
class StudentT(ElementwisePrior):
    """Student's t with ``df`` degrees of freedom, scaled: heavier tails than a Gaussian."""

    df: float = 3.0
    scale: float = 1.0

    def __post_init__(self):
        check_positive("StudentT", df=self.df, scale=self.scale)

    def distribution(self, like: Tensor) -> td.Distribution:
        """Student's t as a distribution of torch, centred at zero."""
        df, zero, scale = (scalar_like(like, value) for value in (self.df, 0.0, self.scale))
        return td.StudentT(df, zero, scale, validate_args=False)


@dataclass(frozen=True)
class ScaleMixture(ElementwisePrior):
    """Σ_k weight_k · N(0, scale_k²), Blundell et al. (2015), equation 7.

    The defaults are the mixture of the authors' first release.
    """

    scales: tuple[float, ...] = (0.01, 5.0)
    weights: tuple[float, ...] = (0.7, 0.3)

    def __post_init__(self):
        if len(self.scales) != len(self.weights) or not self.scales:
            raise ValueError(
                f"ScaleMixture needs one weight per scale, got {len(self.scales)} scales "
                f"and {len(self.weights)} weights."
            )
        for scale in self.scales:
            check_positive("ScaleMixture", scales=scale)
        if min(self.weights) < 0 or not math.isclose(sum(self.weights), 1.0, abs_tol=1e-6):
            raise ValueError(f"ScaleMixture weights must sum to one, got {self.weights}.")

    def distribution(self, like: Tensor) -> td.Distribution:
        """A mixture of zero-mean Gaussians."""
        scales = torch.stack([scalar_like(like, scale) for scale in self.scales])
        weights = torch.stack([scalar_like(like, weight) for weight in self.weights])
        return td.MixtureSameFamily(
            td.Categorical(weights, validate_args=False),
            td.Normal(torch.zeros_like(scales), scales, validate_args=False),
            validate_args=False,
        )
