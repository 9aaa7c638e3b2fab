"""Conformal intervals for regression: intervals that hold the target as often as promised."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor

from bbh import checks
from bbh.decisions.predictions import Array, is_regression, real
from bbh.decisions.ranks import kth_smallest, rank, share
from bbh.metrics.checks import same_shape
from bbh.predictive import RegressionPredictive

Predictions = RegressionPredictive | Array | tuple[Array, Array]


class Band(NamedTuple):
    """An interval before calibration, and the unit in which it is widened.

    Attributes:
        lower: Its lower ends.
        upper: Its upper ends.
        unit: The widened interval is [lower − q·unit, upper + q·unit] with the same q everywhere.
    """

    lower: Float[Tensor, "B *outputs"]
    upper: Float[Tensor, "B *outputs"]
    unit: Float[Tensor, "B *outputs"]


class IntervalScore(ABC):
    """What an interval is made of before calibration."""

    @abstractmethod
    def band(self, predictions: Predictions, alpha: float) -> Band:
        """The band of each prediction."""


@dataclass(frozen=True)
class AbsoluteResidual(IntervalScore):
    """mean ± q: every interval has the same width. From arrays it takes the means."""

    def band(self, predictions: Predictions, alpha: float) -> Band:
        """The mean, widened in units of the targets."""
        del alpha
        known = is_regression(predictions)
        given = cast(RegressionPredictive, predictions).mean if known else predictions
        if isinstance(given, tuple):
            raise TypeError("AbsoluteResidual takes the means alone, not a pair.")
        mean = real("predictions", cast(Array, given))
        return Band(mean, mean, torch.ones_like(mean))


@dataclass(frozen=True)
class Normalised(IntervalScore):
    """mean ± q · standard deviation: wider where the posterior is less certain, and the default.

    Lei et al. (2018), "Distribution-free predictive inference for regression", section 5.2. From
    arrays it takes a pair: means and standard deviations.
    """

    def band(self, predictions: Predictions, alpha: float) -> Band:
        """The mean, widened in units of the predicted standard deviation of an observation."""
        del alpha
        if is_regression(predictions):
            known = cast(RegressionPredictive, predictions)
            pair: Any = (known.mean, known.total_std)
        else:
            pair = _pair(predictions, "Normalised", "means and standard deviations")
        mean, std = real("mean", pair[0]), real("std", pair[1])
        same_shape("std", std, "mean", mean)
        if (std <= 0).any():
            raise ValueError("std: not positive everywhere; pass standard deviations.")
        return Band(mean, mean, std)


@dataclass(frozen=True)
class Quantiles(IntervalScore):
    """[lower − q, upper + q] around the predicted alpha/2 and 1 − alpha/2 quantiles.

    Romano, Patterson & Candès (2019), "Conformalized quantile regression". q is negative where the
    predicted quantiles are too far apart. From arrays it takes a pair: lower and upper ends.
    """

    def band(self, predictions: Predictions, alpha: float) -> Band:
        """The predicted central interval, widened in units of the targets."""
        if is_regression(predictions):
            pair: Any = cast(RegressionPredictive, predictions).interval(1 - alpha)
        else:
            pair = _pair(predictions, "Quantiles", "lower and upper quantiles")
        lower, upper = real("lower", pair[0]), real("upper", pair[1])
        same_shape("upper", upper, "lower", lower)
        if (lower > upper).any():
            raise ValueError("lower: above upper in some entries; swap the two.")
        return Band(lower, upper, torch.ones_like(lower))


@dataclass(frozen=True, eq=False)
class ConformalIntervals:
    """Intervals that hold the target with probability 1 − alpha, on average.

    Split conformal prediction, as `ConformalSets` for classes: with exchangeable examples the
    coverage is at least 1 − alpha, and at most 1 − alpha + 1/(n + 1) if no scores are tied. Several
    outputs are calibrated one by one: each is covered with 1 − alpha, all together less often.
    Use ``fit`` to find the width.

    Attributes:
        widening: q, by how many units each band is widened; one number for each output.
        score: What intervals are made of.
        alpha: The share of intervals that may miss their target.
        num_held_out: n, the number of examples that the width was found with.
    """

    widening: Float[Tensor, "*outputs"]
    score: IntervalScore
    alpha: float
    num_held_out: int

    @staticmethod
    def fit(
        predictions: Predictions,
        targets: Array,
        alpha: float = 0.1,
        *,
        score: IntervalScore | None = None,
        confidence: float | None = None,
    ) -> "ConformalIntervals":
        """Finds the width with held-out examples.

        Args:
            predictions: Predictions of held-out examples, or the arrays that the score takes.
            targets: Their targets, in the shape of the means.
            alpha: The share of intervals that may miss their target, at least 1/(n + 1).
            score: ``Normalised()`` (the default), ``AbsoluteResidual()`` or ``Quantiles()``.
            confidence: With a number, the coverage is at least 1 − alpha for that share of all
                held-out sets, instead of on average over them.
        """
        score = Normalised() if score is None else score
        checks.instance("score", score, IntervalScore, "pass Normalised() or another score")
        share("alpha", alpha)
        known = real("targets", targets)
        lower, upper, unit = score.band(predictions, alpha)
        same_shape("targets", known, "predictions", lower)
        k = rank(len(known), alpha, confidence, "alpha")
        scores = torch.maximum(lower - known, known - upper) / unit
        return ConformalIntervals(kth_smallest(scores, k), score, alpha, len(known))

    def __call__(
        self, predictions: Predictions
    ) -> tuple[Float[Tensor, "B *outputs"], Float[Tensor, "B *outputs"]]:
        """Lower and upper ends, in the type of the predictions.

        Where q is so negative that the ends of an interval would change places, both are put in
        the middle.
        """
        lower, upper, unit = self.score.band(predictions, self.alpha)
        if lower.shape[1:] != self.widening.shape:
            raise ValueError(
                f"predictions have outputs of shape {list(lower.shape[1:])}; the held-out ones had "
                f"{list(self.widening.shape)}."
            )
        middle, reach = (lower + upper) / 2, (upper - lower) / 2 + self.widening * unit
        reach = reach.clamp(min=0)
        source = predictions[0] if isinstance(predictions, tuple) else predictions
        source = source.mean if isinstance(source, RegressionPredictive) else source
        ends = (middle - reach, middle + reach)
        lower, upper = (end.to(source) if isinstance(source, Tensor) else end for end in ends)
        return lower, upper


def _pair(predictions: object, name: str, what: str) -> tuple[Any, Any]:
    if not isinstance(predictions, tuple) or len(cast(tuple[Any, ...], predictions)) != 2:
        raise TypeError(f"{name} takes a prediction of bbh.predict, or a pair: ({what}).")
    return cast(tuple[Any, Any], predictions)
