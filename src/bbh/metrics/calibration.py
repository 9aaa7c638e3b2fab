"""Calibration: whether predictions with a confidence of 80 % are right 80 % of the time."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bbh.metrics import checks


class ReliabilityCurve(NamedTuple):
    """One entry per confidence bin, in float64 on the CPU; means of empty bins are NaN.

    Attributes:
        confidence: Mean probability of the predicted class.
        accuracy: Fraction of correct predictions.
        count: Number of examples.
    """

    confidence: Float[Tensor, "bins"]
    accuracy: Float[Tensor, "bins"]
    count: Int[Tensor, "bins"]  # pyright: ignore[reportIncompatibleMethodOverride]


def expected_calibration_error(
    probs: Float[Tensor, "B C"], targets: Int[Tensor, "B"], num_bins: int = 15
) -> float:
    """Mean gap between top-1 confidence and accuracy over equal-width bins, in [0, 1].

        Σ_m n_m / B · |accuracy_m − confidence_m|

    Naeini et al. (2015), "Obtaining well calibrated probabilities using Bayesian binning"; Guo et
    al. (2017), "On calibration of modern neural networks", equation 3. Bins are closed on the left
    (Guo et al.: on the right); the last one holds confidence 1 as well.

    Args:
        probs: Class probabilities.
        targets: True classes.
        num_bins: The number of bins between 0 and 1.

    Examples:
        >>> probs = torch.tensor([[0.75, 0.25], [0.75, 0.25]])
        >>> expected_calibration_error(probs, torch.tensor([0, 1]))
        0.25
    """
    # Not torchmetrics: it sums in float32, which for 60 000 equal confidences is already wrong by
    # 4e-4, and it adds a bin for confidences of exactly 1, which saturated softmaxes often have.
    curve = reliability_curve(probs, targets, num_bins)
    gap = (curve.accuracy - curve.confidence).abs()
    return float((curve.count * gap).nansum().item()) / len(targets)


def reliability_curve(
    probs: Float[Tensor, "B C"], targets: Int[Tensor, "B"], num_bins: int = 15
) -> ReliabilityCurve:
    """Confidence, accuracy and count per bin: the diagram that the calibration error summarises.

        confidence_m = 1/n_m · Σ_{b in m} max_c p_bc
        accuracy_m   = 1/n_m · Σ_{b in m} 1[argmax_c p_bc = y_b]

    Niculescu-Mizil & Caruana (2005), "Predicting good probabilities with supervised learning";
    the same bins as `expected_calibration_error`.

    Args:
        probs: Class probabilities.
        targets: True classes.
        num_bins: The number of bins between 0 and 1.

    Examples:
        >>> probs = torch.tensor([[0.75, 0.25], [0.75, 0.25]])
        >>> curve = reliability_curve(probs, torch.tensor([0, 1]), num_bins=2)
        >>> curve.confidence.tolist(), curve.accuracy.tolist(), curve.count.tolist()
        ([nan, 0.75], [nan, 0.5], [0, 2])
    """
    checks.at_least("num_bins", num_bins, 1)
    probs, targets = checks.labelled(probs, targets)
    confidence, predicted = probs.detach().max(dim=-1)
    # On the CPU, since weighted counting is not deterministic on a GPU and some lack float64.
    return binned(confidence.cpu(), (predicted == targets).cpu(), num_bins)


def binned(
    confidence: Float[Tensor, "B"], correct: Bool[Tensor, "B"], num_bins: int
) -> ReliabilityCurve:
    """The curve of confidences between 0 and 1, and of whether their predictions are correct."""
    edges = torch.linspace(0, 1, num_bins + 1, dtype=confidence.dtype)
    bins = (torch.bucketize(confidence, edges, right=True) - 1).clamp(max=num_bins - 1)
    count = torch.bincount(bins, minlength=num_bins)
    return ReliabilityCurve(
        confidence=torch.bincount(bins, confidence.double(), minlength=num_bins) / count,
        accuracy=torch.bincount(bins, correct.double(), minlength=num_bins) / count,
        count=count,
    )
