"""Metrics of a classification and of how its outliers differ, and the arrays for figures."""

from typing import Any

import numpy as np
from torch import Tensor

import bbh
from bbh import metrics
from bbh.predictive import ClassPredictive
from bbh_studies.datasets import ImageData

_NUM_EXAMPLES = 24


def measure(
    posterior: bbh.Posterior[Any],
    inside: ClassPredictive,
    outside: ClassPredictive,
    labels: Tensor,
) -> dict[str, float]:
    """Metrics of predictions for test images, and of how those for outliers differ."""
    classes = inside.mean.shape[1]
    wrong = inside.labels != labels
    return {
        **posterior.likelihood.metrics(inside, labels),
        "entropy_auc": metrics.entropy_auc(inside.entropy, classes),
        "outlier_entropy_auc": metrics.entropy_auc(outside.entropy, classes),
        "entropy_auc_histogram": metrics.entropy_auc_histogram(inside.entropy, classes),
        "outlier_entropy_auc_histogram": metrics.entropy_auc_histogram(outside.entropy, classes),
        "ood_auroc": metrics.auroc(inside.entropy, outside.entropy),
        "ood_aupr": metrics.aupr(inside.entropy, outside.entropy),
        "ood_fpr95": metrics.fpr_at_95_tpr(inside.entropy, outside.entropy),
        "ood_auroc_mi": metrics.auroc(inside.mutual_information, outside.mutual_information),
        "ood_aupr_mi": metrics.aupr(inside.mutual_information, outside.mutual_information),
        "ood_fpr95_mi": metrics.fpr_at_95_tpr(
            inside.mutual_information, outside.mutual_information
        ),
        "risk_coverage_area": metrics.risk_coverage_area(inside.entropy, wrong),
    }


def figure_arrays(
    data: ImageData, inside: ClassPredictive, outside: ClassPredictive
) -> dict[str, np.ndarray]:
    """The arrays for figures: numbers for every image, and some images to show."""
    # The outliers that the posterior is surest about.
    fooled = outside.entropy.argsort()[:_NUM_EXAMPLES]
    return {
        **prediction_arrays(inside.mean, data.test_images, data.test_labels),
        "mutual_information": _half(inside.mutual_information),
        "outlier_entropy": _half(outside.entropy),
        "outlier_mutual_information": _half(outside.mutual_information),
        "fooled_images": as_bytes(data.outlier_images[fooled]),
        "fooled_predictions": outside.labels[fooled].cpu().numpy(),
        "fooled_entropy": _half(outside.entropy[fooled]),
    }


def prediction_arrays(probs: Tensor, images: Tensor, labels: Tensor) -> dict[str, np.ndarray]:
    """The arrays of classified images, from their class probabilities.

    Most are in half precision: a figure needs no more, and records are kept in the repository.
    """
    confidence, predicted = probs.max(1)
    entropy = metrics.entropy(probs)
    doubtful = entropy.argsort(descending=True)[:_NUM_EXAMPLES]
    return {
        "entropy": _half(entropy),
        "confidence": confidence.cpu().numpy(),  # single precision: near one, differences matter
        "correct": (predicted == labels).cpu().numpy(),
        "doubtful_images": as_bytes(images[doubtful]),
        "doubtful_labels": labels[doubtful].numpy(),
        "doubtful_predictions": predicted[doubtful].cpu().numpy(),
        "doubtful_entropy": _half(entropy[doubtful]),
    }


def as_bytes(images: Tensor) -> np.ndarray:
    """Images as levels from 0 to 255: grey ones [B, H, W], coloured ones [B, H, W, 3]."""
    levels = (images * 255).round().byte().cpu()
    return (levels[:, 0] if levels.shape[1] == 1 else levels.movedim(1, -1)).numpy()


def _half(values: Tensor) -> np.ndarray:
    return values.half().cpu().numpy()
