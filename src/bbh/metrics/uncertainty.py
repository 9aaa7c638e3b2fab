"""The uncertainty of a prediction, its two sources, and its summary over a dataset.

All entropies are in nats. The total uncertainty of a prediction is the sum of the uncertainty that
remains for given weights (expected entropy) and the disagreement between weights (mutual
information).
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bbh.metrics import checks

# The published evaluation divides [0, H_max) into 500 steps, of which the last is never reached.
_HISTOGRAM_STEPS = 500


def entropy(probs: Float[Tensor, "*batch C"]) -> Float[Tensor, "*batch"]:
    """Entropy of each distribution, from 0 to log C, with 0 log 0 = 0 exactly.

        H(p) = −Σ_c p_c log p_c

    Shannon (1948), "A mathematical theory of communication".

    Args:
        probs: Class probabilities on the last axis; for the total uncertainty of a Bayesian
            prediction, their mean over the draws.

    Examples:
        >>> entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
        tensor([0.0000, 0.6931])
    """
    return torch.special.entr(checks.probabilities("probs", probs)).sum(dim=-1)


def expected_entropy(probs_per_draw: Float[Tensor, "S B C"]) -> Float[Tensor, "B"]:
    """Mean entropy of the single draws: the aleatoric part, which remains even for known weights.

        E_w[H(p(y | x, w))] ≈ 1/S · Σ_s H(p_s)

    Depeweg et al. (2018), "Decomposition of uncertainty in Bayesian deep learning".

    Args:
        probs_per_draw: Class probabilities of each draw of the weights.

    Examples:
        >>> expected_entropy(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([0.])
    """
    return entropy(checks.probabilities("probs_per_draw", probs_per_draw, num_dims=3)).mean(dim=0)


def mutual_information(probs_per_draw: Float[Tensor, "S B C"]) -> Float[Tensor, "B"]:
    """Information that the label would give about the weights: the epistemic part.

        I(y; w | x) ≈ H(1/S · Σ_s p_s) − 1/S · Σ_s H(p_s)

    Houlsby et al. (2011), "Bayesian active learning for classification and preference learning".
    It is never negative by Jensen's inequality; rounding errors below 0 are clamped.

    Args:
        probs_per_draw: Class probabilities of each draw of the weights.

    Examples:
        >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([0.6931])
    """
    probs_per_draw = checks.probabilities("probs_per_draw", probs_per_draw, num_dims=3)
    total = entropy(probs_per_draw.mean(dim=0))
    return (total - expected_entropy(probs_per_draw)).clamp(min=0)


def entropy_auc(entropies: Float[Tensor, "B"], num_classes: int) -> float:
    """Area under the cumulative distribution of the entropies, in [0, 1].

        1/log C · ∫ F(h) dh over [0, log C]  =  1 − mean(H) / log C

    The measure of Pawlowski et al. (2017), "Implicit weight uncertainty in neural networks", in
    exact form: integration by parts shows that it depends on the mean entropy alone. High is good
    on data like the training data, low is good on outliers.

    Args:
        entropies: Predictive entropies in nats.
        num_classes: C, which sets the largest possible entropy.

    Examples:
        >>> entropy_auc(torch.zeros(3), num_classes=10)
        1.0
    """
    max_entropy = math.log(checks.at_least("num_classes", num_classes, 2))
    checked = checks.entropies(entropies, max_entropy)
    return 1.0 - float(checked.mean().item()) / max_entropy


def entropy_auc_histogram(entropies: Float[Tensor, "B"], num_classes: int) -> float:
    """The area `entropy_auc` as the published code computes it, in [0, 0.998], for comparison only.

        1/500 · Σ_{j=1…499} F(j·h),  h = log C / 500

    A histogram with the 500 edges 0, h, ..., 499 h, hence 499 bins, normalised to 1, cumulated at
    the right edges and divided by log C (the published code leaves the division to the tables).
    Entropies beyond the last edge are dropped before normalising; one exactly on it is kept, as
    the last bin of a histogram is closed. If none is dropped, the value lies below `entropy_auc` by
    at most one bin, 0.002, and by half a bin on average over smooth distributions. Dropped
    entropies make it too large: the outliers that are recognised best do not count at all.

    If all entropies are dropped, the published code divides 0 by 0. This function returns 0, the
    limit as all entropies become maximal, which is within one bin of the exact value.

    Args:
        entropies: Predictive entropies in nats.
        num_classes: C, which sets the largest possible entropy.

    Examples:
        >>> entropy_auc_histogram(torch.zeros(3), num_classes=10)
        0.998
    """
    max_entropy = math.log(checks.at_least("num_classes", num_classes, 2))
    checked = checks.entropies(entropies, max_entropy)
    edges = max_entropy / _HISTOGRAM_STEPS * np.arange(_HISTOGRAM_STEPS)
    counts = np.histogram(checked.detach().double().cpu().numpy(), edges)[0]
    kept = int(counts.sum())
    if kept == 0:
        return 0.0
    return int(counts.cumsum().sum()) / kept / _HISTOGRAM_STEPS
