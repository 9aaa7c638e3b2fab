"""The likelihood that makes a network learn one quantile of its targets."""

from dataclasses import dataclass, field
from numbers import Real

import torch
from torch import Tensor

from bbh import checks, metrics
from bbh.likelihoods.base import Sums
from bbh.likelihoods.location_scale import CommonScale
from bbh.likelihoods.number_metrics import mean_nll, selected
from bbh.likelihoods.regression import kept
from bbh.predictive import QuantilePredictive, log_mean_over_draws
from bbh.residuals import AsymmetricLaplace
from bbh.standardisation import Standardisation


@dataclass(eq=False, repr=False)
class Quantile(CommonScale[QuantilePredictive]):
    """Quantile regression: the network learns the value below which a share of all targets lies.

    It is the asymmetric Laplace distribution, whose log density is minus the pinball loss:

        log p(y | q) = log τ(1 − τ)/σ − max(τ(y − q), (τ − 1)(y − q)) / σ

    This is a working likelihood: it makes q the τ-quantile whatever the true distribution of
    targets is, and does not claim that targets follow it. So the spread of q over weight draws
    tells where little is known, but it has the right size only if the loss's scale σ happens to
    describe the targets, and there are no predictive intervals. For an interval, train one
    posterior for each of its ends. Yu & Moyeed (2001), "Bayesian quantile regression".

    Args:
        level: τ, the share of targets below the quantile, such as 0.9; 0.5 is the median.
        scale: σ in the units of the targets: the mean pinball loss. None if it is not known: it is
            then learned.
        learned: Whether ``scale`` is only the initial value and is learned with the weights. None
            learns it if no scale is given.
        standardise: Whether ``fit`` learns the targets' loc and scale (see ``Regression``), or a
            ``Standardisation`` to use. None does so if no scale is given.
    """

    level: float
    scale: float | None = None
    learned: bool | None = None
    standardise: bool | Standardisation | None = None
    log_scale: Tensor = field(init=False, repr=False)

    robust = True

    def __post_init__(self):
        super().__init__()
        one = "a posterior learns one level, as in Quantile(0.9): train one for each of several"
        checks.instance("level", self.level, Real, one)
        if not 0 < self.level < 1:
            raise ValueError(
                f"Quantile({self.level}): the level lies strictly between 0 and 1, as in "
                "Quantile(0.9)."
            )
        self._register_scale()

    @property
    def residual(self) -> AsymmetricLaplace:
        """The asymmetric Laplace distribution whose τ-quantile is 0."""
        return AsymmetricLaplace(self.level)

    def predictive(
        self, sums: Sums, num_samples: int, outputs: Tensor | None
    ) -> QuantilePredictive:
        """The quantile according to all draws, in the targets' units."""
        locs, scales = self.split(kept(outputs))
        return QuantilePredictive(locs.mean(0), num_samples, self.level, locs, scales)

    def metrics(
        self, predictive: QuantilePredictive, targets: Tensor, weights: Tensor | None = None
    ) -> dict[str, float]:
        """Error (pinball loss), NLL of the working likelihood, and the share of targets below.

        ``below`` is to be compared with the level.
        """
        observed = self.observed(targets, weights)
        mean, judged = selected(predictive.mean, observed), selected(targets, observed)
        residuals = (targets - predictive.locs) / predictive.scales
        each = self.residual.log_density(residuals) - predictive.scales.log()
        return {
            "error": metrics.pinball(mean, judged, self.level),
            "nll": mean_nll(log_mean_over_draws(each, observed), observed),
            "below": float((judged <= mean).double().mean()),
        }

    def constant(self, training: Tensor, targets: Tensor) -> dict[str, float]:
        """Metrics of the quantile of the training targets, for every output."""
        known = training.to(torch.promote_types(training.dtype, torch.float32))
        place = min(int(self.level * len(known)), len(known) - 1)
        loc = known.sort(0).values[place]
        away = known - loc
        scale = torch.maximum(self.level * away, (self.level - 1) * away).mean(0)
        loc = loc.expand(targets.shape)
        scale = scale.clamp(min=1e-6).expand(targets.shape)
        found = QuantilePredictive(loc, 1, self.level, loc[None], scale[None])
        return self.metrics(found, targets)

    def extra_repr(self) -> str:
        """The level, the present scale of the loss, and the targets' loc and scale."""
        return f"level={self.level}, {super().extra_repr()}"
