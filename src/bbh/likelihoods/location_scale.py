"""What likelihoods of numbers with symmetric noise share, and a noise scale that can be learned."""

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from bbh import metrics
from bbh.likelihoods.base import P, Sums
from bbh.likelihoods.number_metrics import number_metrics, selected
from bbh.likelihoods.regression import Regression, kept, rounded
from bbh.predictive import RegressionPredictive
from bbh.residuals import Residual

_SMALLEST_SCALE = 1e-6


class LocationScale(Regression[RegressionPredictive]):
    """targets = loc + scale · residual, with residuals that are symmetric around zero."""

    @property
    @abstractmethod
    def residual(self) -> Residual:
        """How (target − loc) / scale is distributed."""

    def predictive(
        self, sums: Sums, num_samples: int, outputs: Tensor | None
    ) -> RegressionPredictive:
        """The mixture of the distributions of all draws, in the targets' units."""
        locs, scales = self.split(kept(outputs))
        return RegressionPredictive(locs.mean(0), num_samples, locs, scales, self.residual)

    def metrics(
        self, predictive: RegressionPredictive, targets: Tensor, weights: Tensor | None = None
    ) -> dict[str, float]:
        """Error (RMSE), NLL of the mixture, coverage of the 95 % interval, mean absolute error."""
        observed = self.observed(targets, weights)
        found = number_metrics(predictive, targets, observed)
        mean, judged = selected(predictive.mean, observed), selected(targets, observed)
        return found | {"mae": metrics.mae(mean, judged)}

    def constant(self, training: Tensor, targets: Tensor) -> dict[str, float]:
        """Metrics of the same kind of noise around one number for every output."""
        known = training.to(torch.promote_types(training.dtype, torch.float32))
        loc, scale = self._constant(known)
        # Targets that are all equal have no spread, but a density needs some.
        loc = loc.expand(targets.shape)
        scale = scale.clamp(min=_SMALLEST_SCALE).expand(targets.shape)
        predictive = RegressionPredictive(loc, 1, loc[None], scale[None], self.residual)
        return self.metrics(predictive, targets)

    @abstractmethod
    def _constant(self, training: Tensor) -> tuple[Tensor, Tensor]:
        """The most probable loc and scale of every output, if inputs are ignored."""


class CommonScale(Regression[P]):
    """A likelihood whose noise has one scale for all examples, which is given or learned.

    Attributes:
        scale: The scale, in the units of the targets; None if it is not known.
        learned: Whether ``scale`` is only the initial value. None learns it if none is given.
        log_scale: The logarithm of the present scale. It is in the units of the targets if a scale
            was given, else on the network's scale.
    """

    scale: float | None
    learned: bool | None
    log_scale: Tensor

    def _register_scale(self) -> None:
        """Checks the settings and makes the parameter; the last call of ``__post_init__``."""
        name = type(self).__name__
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise ValueError(f"{name}(scale={self.scale}): the scale must be positive.")
        if self.learned is None:
            self.learned = self.scale is None
        if self.standardise is None:
            self.standardise = self.scale is None
        if self.scale is None and not self.learned:
            raise ValueError(
                f"{name}(learned=False) needs the noise's scale, in the units of the targets."
            )
        log_scale = torch.tensor(math.log(self.scale or 1.0))
        if self.learned:
            self.log_scale = nn.Parameter(log_scale)
        else:
            self.register_buffer("log_scale", log_scale)
        self._register_targets()

    def standard(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs as locs, and the common noise."""
        noise = self.log_scale.exp().to(outputs.device)
        if self.scale is not None and self.target_loc.numel():
            noise = noise / self._known(outputs)[1]  # it is in the units of the targets
        return outputs, noise.expand_as(outputs)

    @property
    def initial_noise(self) -> float:
        """The present noise, on the network's scale; the mean over outputs."""
        loc = torch.zeros_like(self.target_loc if self.target_loc.numel() else self.log_scale)
        return float(self.standard(loc)[1].detach().mean())

    def extra_repr(self) -> str:
        """The present noise in the units of the targets, and their loc and scale."""
        loc = torch.zeros_like(self.target_loc if self.target_loc.numel() else self.log_scale)
        noise = self.split(loc)[1]
        return f"scale={rounded(noise)}, learned={self.learned}, {self._targets_repr()}"
