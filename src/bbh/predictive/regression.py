"""Predictive distributions of real numbers: each draw has a loc, a scale and a shape of noise."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.predictive.mixture import MixturePredictive
from bbh.residuals import Normal, Residual

# The most steps of a quantile search, which usually takes about ten.
_STEPS = 120
# The search ends when a step is smaller than this share of the smallest scale.
_CLOSE = 1e-11


@dataclass(frozen=True, repr=False)
class RegressionPredictive(MixturePredictive):
    """The predictive distribution of a regression: a mixture of one distribution per weight draw.

    Attributes:
        locs: Centre of every draw [S, B, …], which is its mean and its median.
        scales: Scale of the observation noise of every draw [S, B, …]; for Gaussian noise its
            standard deviation.
        residual: How (target − loc) / scale is distributed.
    """

    per_draw: ClassVar[tuple[str, ...]] = ("locs", "scales")

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
        close = _CLOSE * scales.amin(0)
        found = (lower + upper) / 2
        move = before = upper - lower
        done = torch.zeros_like(found, dtype=torch.bool)
        for _ in range(_STEPS):
            residuals = (found - locs) / scales
            excess = self.residual.distribution_function(residuals).mean(0) - level
            lower = torch.where(excess < 0, found, lower)
            upper = torch.where(excess < 0, upper, found)
            newton = excess / (self.residual.log_density(residuals).exp() / scales).mean(0)
            # Newton's step if it stays inside and is at most half of the step before the last, else
            # the middle: either way the search comes to an end.
            inside = (lower <= found - newton) & (found - newton <= upper)
            good = inside & (2 * newton.abs() <= before.abs())
            following = torch.where(good, found - newton, (lower + upper) / 2)
            following = torch.where(done, found, following)
            move, before, found = following - found, move, following
            resolution = 4 * torch.finfo(found.dtype).eps * found.abs()
            done |= move.abs() <= torch.maximum(close, resolution)
            if bool(done.all()):
                break
        return found

    def _log_probs(self, targets: Tensor) -> Tensor:
        residuals = (targets - self.locs) / self.scales
        return self.residual.log_density(residuals) - self.scales.log()

    def _sample(self, chosen: Tensor) -> Tensor:
        locs, scales = self.locs[chosen], self.scales[chosen]
        return locs + scales * self.residual.sample_like(locs)
