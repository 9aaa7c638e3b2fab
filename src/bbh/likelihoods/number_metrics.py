"""Metrics of predicted numbers, of which some targets may be left out."""

import torch
from torch import Tensor

from bbh import metrics
from bbh.predictive import MixturePredictive


def number_metrics(
    predictive: MixturePredictive, targets: Tensor, observed: Tensor | None
) -> dict[str, float]:
    """Error (RMSE), NLL of the mixture per example, and coverage of the 95 % interval.

    Args:
        predictive: A mixture over draws.
        targets: What was observed, of the shape of the predictions.
        observed: Which targets count; None for all.
    """
    lower, upper = predictive.interval(0.95)
    mean, lower, upper, judged = (
        selected(one, observed) for one in (predictive.mean, lower, upper, targets)
    )
    return {
        "error": metrics.rmse(mean, judged),  # first, since it checks shapes and values
        "nll": mean_nll(predictive.log_prob(targets, observed), observed),
        "coverage_95": metrics.interval_coverage(lower, upper, judged),
    }


def mean_nll(log_prob: Tensor, observed: Tensor | None) -> float:
    """Mean negative log probability of the examples that have a target."""
    if observed is not None:
        log_prob = log_prob[observed.flatten(1).any(1) if observed.dim() > 1 else observed]
    return -float(log_prob.mean())


def selected(values: Tensor, observed: Tensor | None) -> Tensor:
    """The values that count, in one row if some do not, as floating-point numbers."""
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    return values if observed is None else values[observed]
