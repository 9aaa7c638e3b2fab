"""Gaussian likelihoods: with one noise for all examples, or one that the network predicts."""

import math
from dataclasses import dataclass, field

from torch import Tensor
from torch.nn import functional as F

from bbh import metrics
from bbh.likelihoods.location_scale import CommonScale, LocationScale
from bbh.likelihoods.number_metrics import number_metrics
from bbh.predictive import RegressionPredictive
from bbh.residuals import Normal
from bbh.standardisation import Standardisation


class GaussianNoise(LocationScale):
    """Gaussian noise, for whose mixtures the CRPS has a closed form."""

    @property
    def residual(self) -> Normal:
        """N(0, 1)."""
        return Normal()

    def metrics(
        self, predictive: RegressionPredictive, targets: Tensor, weights: Tensor | None = None
    ) -> dict[str, float]:
        """Error (RMSE), NLL of the mixture, coverage of the 95 % interval, CRPS."""
        observed = self.observed(targets, weights)
        found = number_metrics(predictive, targets, observed)
        locs, scales = predictive.locs, predictive.scales
        if observed is not None:
            locs, scales, targets = locs[:, observed], scales[:, observed], targets[observed]
        return found | {"crps": metrics.crps(locs, scales, targets)}

    def _constant(self, training: Tensor) -> tuple[Tensor, Tensor]:
        return training.mean(0), training.std(0, correction=0)


@dataclass(eq=False, repr=False)
class Gaussian(GaussianNoise, CommonScale[RegressionPredictive]):
    """targets ~ N(outputs, noise²), with the same noise for all examples.

    Whoever knows the noise describes the model in the units of the targets, and nothing is changed
    about it. Whoever does not leaves it all to the data: ``Gaussian()`` works with targets in any
    units, ``Gaussian(0.1)`` expects targets of a size that the network and its prior can reach.

    Args:
        scale: Standard deviation of the observation noise, in the units of the targets. None if it
            is not known: it is then learned, starting at the targets' own spread, and of several
            outputs each has a noise in proportion to its spread.
        learned: Whether ``scale`` is only the initial value and is learned with the weights. None
            learns it if no scale is given.
        standardise: Whether ``fit`` learns the targets' loc and scale (see ``Regression``), or a
            ``Standardisation`` to use. None does so if no noise scale is given.
    """

    scale: float | None = None
    learned: bool | None = None
    standardise: bool | Standardisation | None = None
    log_scale: Tensor = field(init=False, repr=False)

    def __post_init__(self):
        super().__init__()
        self._register_scale()


@dataclass(eq=False, repr=False)
class HeteroscedasticGaussian(GaussianNoise):
    """targets ~ N(loc, scale²), where the network predicts both loc and scale.

    The last axis of the outputs holds the locs and then the raw scales, with
    scale = min_scale + softplus(raw). A network for k targets thus has 2k outputs. Both are on the
    network's scale: multiplied by the targets' spread where targets are standardised.

    Args:
        min_scale: Smallest scale. It keeps the likelihood bounded where the network fits targets
            exactly.
        standardise: Whether ``fit`` learns the targets' loc and scale (see ``Regression``), or a
            ``Standardisation`` to use.
    """

    min_scale: float = 1e-3
    standardise: bool | Standardisation | None = True

    def __post_init__(self):
        super().__init__()
        if not self.min_scale > 0:
            raise ValueError(f"min_scale must be positive, got {self.min_scale}.")
        self._register_targets()

    def standard(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means from the first half of the outputs, scales from the second half."""
        if outputs.shape[-1] % 2:
            raise ValueError(
                "HeteroscedasticGaussian needs an even number of outputs, means then raw scales; "
                f"the network has {outputs.shape[-1]}."
            )
        loc, raw = outputs.chunk(2, dim=-1)
        return loc, self.min_scale + F.softplus(raw)

    @property
    def initial_noise(self) -> float:
        """min_scale + softplus(0)."""
        return self.min_scale + math.log(2)

    def extra_repr(self) -> str:
        """The smallest scale, and the targets' loc and scale."""
        return f"min_scale={self.min_scale}, {self._targets_repr()}"
