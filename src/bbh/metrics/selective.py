"""Selective prediction: the error when a model answers only where it is least uncertain."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from bbh.metrics import checks


class RiskCoverageCurve(NamedTuple):
    """One entry per number of answered examples, 1 to B, in float64 on the CPU.

    Attributes:
        coverage: Fraction of the examples that are answered.
        risk: Mean error among the answered examples.
    """

    coverage: Float[Tensor, "B"]
    risk: Float[Tensor, "B"]


def risk_coverage_curve(
    uncertainty: Float[Tensor, "B"], errors: Shaped[Tensor, "B"]
) -> RiskCoverageCurve:
    """Error rate among the k least uncertain examples, for every k.

        coverage_k = k/B,  risk_k = 1/k · Σ_{i ≤ k} error_i

    El-Yaniv & Wiener (2010), "On the foundations of noise-free selective classification". Examples
    of equal uncertainty have no order: each counts with the mean error of all examples tied with
    it, which is the expectation over all their orders. The result therefore does not depend on the
    order of the inputs, and a constant uncertainty gives the constant overall error.

    Args:
        uncertainty: Examples with low values are answered first.
        errors: Whether the prediction is wrong (booleans or 0 and 1), or any other loss.

    Examples:
        >>> curve = risk_coverage_curve(torch.tensor([0.1, 0.9]), torch.tensor([False, True]))
        >>> curve.coverage.tolist(), curve.risk.tolist()
        ([0.5, 1.0], [0.0, 0.5])
    """
    uncertainty = checks.numbers("uncertainty", uncertainty, num_dims=1).detach().cpu()
    errors = checks.numbers("errors", errors, num_dims=1).detach().cpu().double()
    checks.same_shape("errors", errors, "uncertainty", uncertainty)

    _, block, size = torch.unique(uncertainty, return_inverse=True, return_counts=True)
    block_error = torch.bincount(block, weights=errors) / size
    answered = torch.arange(1, len(errors) + 1, dtype=torch.float64)
    return RiskCoverageCurve(
        coverage=answered / len(errors),
        risk=block_error.repeat_interleave(size).cumsum(dim=0) / answered,
    )


def risk_coverage_area(uncertainty: Float[Tensor, "B"], errors: Shaped[Tensor, "B"]) -> float:
    """Area under the risk-coverage curve (AURC), low if the wrong predictions are uncertain.

        1/B · Σ_k risk_k

    Geifman, Uziel & El-Yaniv (2019), "Bias-reduced uncertainty estimation for deep neural
    classifiers"; ties are treated as in `risk_coverage_curve`. An uncertainty without information
    gives the overall error.

    Args:
        uncertainty: Examples with low values are answered first.
        errors: Whether the prediction is wrong (booleans or 0 and 1), or any other loss.

    Examples:
        >>> risk_coverage_area(torch.tensor([0.1, 0.9]), torch.tensor([False, True]))
        0.25
    """
    return float(risk_coverage_curve(uncertainty, errors).risk.mean().item())
