"""Functional diversity: how much the predictions of different weight draws differ."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.batches import Inputs
from bbh.posterior import Posterior
from bbh.prediction.predicting import MEMORY_LIMIT, predict
from bbh.predictive import ClassPredictive, RegressionPredictive
from bbh.residuals import Normal


@dataclass(frozen=True)
class Diversity:
    """Differences between two draws, averaged over all pairs of draws and over the inputs.

    Attributes:
        kl: KL divergence between their predictions, in nats.
        disagreement: How often their most probable classes differ; None for regression.
        num_samples: The number of draws.
        num_inputs: The number of inputs.
    """

    kl: float
    disagreement: float | None
    num_samples: int
    num_inputs: int

    def numbers(self) -> dict[str, float | int | None]:
        """The numbers as a dictionary, ready for JSON."""
        return {
            "kl": self.kl,
            "disagreement": self.disagreement,
            "draws": self.num_samples,
            "inputs": self.num_inputs,
        }

    def __str__(self) -> str:
        classes = "" if self.disagreement is None else f"{self.disagreement:.2%} other classes, "
        return (
            f"two draws on {self.num_inputs:,} inputs: {classes}KL {self.kl:.3g} nats "
            f"({self.num_samples} draws)"
        )


def functional_diversity(
    posterior: Posterior[Any],
    inputs: Inputs | Iterable[Any],
    num_samples: int = 100,
    *,
    samples: Mapping[str, Tensor] | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Diversity:
    """How much draws disagree about these inputs.

    Args:
        posterior: Any posterior with more than one weight setting.
        inputs: Inputs in any form that ``bbh.predict`` takes. Draws agree where the training data
            determine the prediction, so the result depends on the inputs as much as on the
            posterior.
        num_samples: The number S of draws.
        samples: Draws to use instead of new ones.
        memory_limit: Largest number of bytes, as in ``bbh.predict``.
    """
    predictive = predict(
        posterior,
        inputs,
        num_samples,
        samples=samples,
        memory_limit=memory_limit,
        keep_draws=True,
    )
    if predictive.num_samples < 2:
        raise ValueError("there is one weight setting only: disagreement takes at least two.")
    if isinstance(predictive, RegressionPredictive) and isinstance(predictive.residual, Normal):
        kl = gaussian_kl(predictive.locs, predictive.scales)
        return Diversity(kl, None, predictive.num_samples, len(predictive.mean))
    if not isinstance(predictive, ClassPredictive) or predictive.draws is None:
        raise TypeError(
            f"{type(posterior.likelihood).__name__} predicts neither classes nor Gaussians: how "
            "much its draws differ is not known here."
        )
    probs = predictive.draws
    # Yes/no outputs have one probability each and no axis of classes: add it.
    if probs.dim() == predictive.labels.dim() + 1:
        probs = torch.stack([1 - probs, probs], dim=-1)
    return Diversity(
        kl=class_kl(probs),
        disagreement=disagreement(probs),
        num_samples=predictive.num_samples,
        num_inputs=len(predictive.mean),
    )


def disagreement(probs: Float[Tensor, "S B *event C"]) -> float:
    """Share of pairs of draws whose most probable classes differ.

        S/(S − 1) · (1 − Σ_c f_c²),  f_c the share of draws that vote for c

    Examples:
        >>> disagreement(torch.tensor([[[0.9, 0.1]], [[0.8, 0.2]], [[0.3, 0.7]]]))
        0.6666666666666666
    """
    votes = torch.nn.functional.one_hot(probs.argmax(-1), probs.shape[-1])
    equal = votes.double().mean(0).square().sum(-1).mean()
    return _among_different(1 - float(equal), len(probs))


def class_kl(probs: Float[Tensor, "S B *event C"]) -> float:
    """Mean of Σ_c p_s log(p_s / p_t) over pairs of draws s ≠ t, in nats.

    A probability that was rounded to zero counts as 10⁻³⁸, the smallest normal number in single
    precision, since the divergence would otherwise be infinite.
    """
    probs = probs.double()
    logs = probs.clamp(min=torch.finfo(torch.float32).tiny).log()
    # No loop over pairs is needed: the mean over t of log p_t is the same for every s.
    own = (probs * logs).sum(-1).mean()
    other = (probs.mean(0) * logs.mean(0)).sum(-1).mean()
    return _among_different(float(own - other), len(probs))


def gaussian_kl(locs: Float[Tensor, "S B *event"], scales: Float[Tensor, "S B *event"]) -> float:
    """Mean KL divergence between the predicted Gaussians of two draws, summed over outputs.

    KL = log(σ_t/σ_s) + (σ_s² + (μ_s − μ_t)²) / (2σ_t²) − ½; the logarithms cancel in the mean
    over all pairs.
    """
    locs, variances = locs.double(), scales.double().square()
    away = locs.var(0, correction=0) + (locs - locs.mean(0)).square()
    each = ((variances.mean(0) + away) / variances).mean(0) / 2 - 0.5
    return _among_different(float(each.flatten(1).sum(1).mean()), len(locs))


def _among_different(mean_of_all: float, number: int) -> float:
    """Mean over pairs of different draws, from the mean over all pairs.

    The pairs of a draw with itself, which are left out, contribute zero to the sum.
    """
    return max(0.0, mean_of_all * number / (number - 1))
