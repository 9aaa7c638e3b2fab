"""Metrics: pure functions of probabilities, scores or predictive parameters, and of targets.

Inputs are checked first; an invalid one raises `ValueError` with the argument and a remedy.
"""

from bbh.metrics.calibration import (
    ReliabilityCurve,
    expected_calibration_error,
    reliability_curve,
)
from bbh.metrics.classification import (
    accuracy,
    brier,
    error,
    flatten_positions,
    nll,
    ranked_probability_score,
)
from bbh.metrics.comparison import agreement, total_variation
from bbh.metrics.detection import aupr, auroc, fpr_at_95_tpr
from bbh.metrics.regression import (
    crps,
    gaussian_mixture_nll,
    interval_coverage,
    mae,
    pinball,
    rmse,
)
from bbh.metrics.selective import RiskCoverageCurve, risk_coverage_area, risk_coverage_curve
from bbh.metrics.uncertainty import (
    entropy,
    entropy_auc,
    entropy_auc_histogram,
    expected_entropy,
    mutual_information,
)

__all__ = [
    "ReliabilityCurve",
    "RiskCoverageCurve",
    "accuracy",
    "agreement",
    "aupr",
    "auroc",
    "brier",
    "crps",
    "entropy",
    "entropy_auc",
    "entropy_auc_histogram",
    "error",
    "expected_calibration_error",
    "expected_entropy",
    "flatten_positions",
    "fpr_at_95_tpr",
    "gaussian_mixture_nll",
    "interval_coverage",
    "mae",
    "mutual_information",
    "nll",
    "pinball",
    "ranked_probability_score",
    "reliability_curve",
    "risk_coverage_area",
    "risk_coverage_curve",
    "rmse",
    "total_variation",
]
