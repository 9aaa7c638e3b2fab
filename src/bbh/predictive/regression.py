"""Predictive distributions of real numbers: each draw has a loc, a scale and a shape of noise."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.predictive.mixture import MixturePredictive
from bbh.residuals import Normal, Residual

# Bisection steps in a quantile search: 2⁻⁶⁰ is below the resolution of float64.
_HALVINGS = 60


@dataclass(frozen=True, repr=False)
class RegressionPredictive(MixturePredictive):
    """The predictive distribution of a regression: a mixture of one distribution per weight draw.

    Attributes:
        locs: Centre of every draw [S, B, …], which is its mean and its median.
        scales: Scale of the observation noise of every draw [S, B, …]; for Gaussian noise its
            standard deviation.
        residual: How (target − loc) / scale is distributed.
    """

    locs: Float[Tensor, "S B *event"]
    scales: Float[Tensor, "S B *event"]
    residual: Residual = Normal()  # noqa: RUF009, a frozen value

    @property
    def means(self) -> Float[Tensor, "S B *event"]:
        """The locs."""
        return self.locs

    @property
    def variances(self) -> Float[Tensor, "S B *event"]:
        """Square of the noise's standard deviation, which may be infinite."""
        return (self.scales * self.residual.std).square()

    def _quantile(self, level: float) -> Tensor:
        locs, scales = self.locs.double(), self.scales.double()
        # The mixture's quantile lies between the outermost ones of its parts.
        each = locs + scales * self.residual.quantile(level)
        lower, upper = each.amin(0), each.amax(0)
        for _ in range(_HALVINGS):
            middle = (lower + upper) / 2
            reached = self.residual.distribution_function((middle - locs) / scales).mean(0)
            lower = torch.where(reached < level, middle, lower)
            upper = torch.where(reached < level, upper, middle)
        return (lower + upper) / 2

    def _log_probs(self, targets: Tensor) -> Tensor:
        residuals = (targets - self.locs) / self.scales
        return self.residual.log_density(residuals) - self.scales.log()

    def _sample(self, chosen: Tensor) -> Tensor:
        locs, scales = self.locs[chosen], self.scales[chosen]
        return locs + scales * self.residual.sample_like(locs)
