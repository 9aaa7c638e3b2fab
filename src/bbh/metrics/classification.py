"""Quality of predicted class probabilities."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from bbh.metrics import checks


def accuracy(probs: Float[Tensor, "B C"], targets: Int[Tensor, "B"]) -> float:
    """Fraction of examples whose most probable class is the target, in [0, 1].

        1/B · Σ_b 1[argmax_c p_bc = y_b]

    Args:
        probs: Class probabilities; if several are largest, the first class is predicted.
        targets: True classes.

    Examples:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        0.5
    """
    probs, targets = checks.labelled(probs, targets)
    return int((probs.argmax(dim=-1) == targets).sum()) / len(targets)


def error(probs: Float[Tensor, "B C"], targets: Int[Tensor, "B"]) -> float:
    """Misclassified examples in per cent, from 0 to 100, as in the tables of papers.

        100 · (1 − accuracy)

    Args:
        probs: Class probabilities.
        targets: True classes.

    Examples:
        >>> error(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        50.0
    """
    probs, targets = checks.labelled(probs, targets)
    return 100.0 * int((probs.argmax(dim=-1) != targets).sum()) / len(targets)


def nll(probs: Float[Tensor, "B C"], targets: Int[Tensor, "B"]) -> float:
    """Mean negative log probability of the targets, in nats.

        −1/B · Σ_b log p_b[y_b]

    This is the logarithmic score, a proper scoring rule: Gneiting & Raftery (2007), "Strictly
    proper scoring rules, prediction, and estimation", section 4.1.

    Args:
        probs: Class probabilities. A softmax can underflow to exactly 0, and one target with
            probability 0 would make the mean infinite. Probabilities are therefore clamped at the
            smallest normal number of their dtype. This changes no probability of full precision,
            and a mistake with probability 0 costs 87 nats in float32, 708 in float64.
        targets: True classes.

    Examples:
        >>> round(nll(torch.tensor([[0.5, 0.5], [0.75, 0.25]]), torch.tensor([0, 1])), 4)
        1.0397
    """
    probs, targets = checks.labelled(probs, targets)
    target_probs = probs.gather(-1, targets.unsqueeze(-1))
    return float(-target_probs.clamp(min=torch.finfo(probs.dtype).tiny).log().mean().item())


def brier(probs: Float[Tensor, "B C"], targets: Int[Tensor, "B"]) -> float:
    """Multi-class Brier score: squared distance to the one-hot target, in [0, 2].

        1/B · Σ_b Σ_c (p_bc − 1[y_b = c])²

    Brier (1950), "Verification of forecasts expressed in terms of probability". The score
    is summed over classes, as in the original; for two classes this is twice the binary score.

    Args:
        probs: Class probabilities.
        targets: True classes.

    Examples:
        >>> brier(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 1]))
        1.25
    """
    probs, targets = checks.labelled(probs, targets)
    return float((probs - one_hot(targets, probs.shape[1])).square().sum(dim=-1).mean().item())


def ranked_probability_score(probs: Float[Tensor, "B C"], targets: Int[Tensor, "B"]) -> float:
    """Squared distance of cumulated probabilities, for classes that are ordered; from 0 to C − 1.

        1/B · Σ_b Σ_k (P_b(class ≤ k) − 1[y_b ≤ k])²

    Epstein (1969), "A scoring system for probability forecasts of ranked categories". To predict a
    class nearby costs less than one far away, which the Brier score does not know.

    Args:
        probs: Probabilities of the classes in their order.
        targets: True classes.

    Examples:
        >>> sure = torch.tensor([[1.0, 0.0, 0.0]])
        >>> [ranked_probability_score(sure, torch.tensor([level])) for level in range(3)]
        [0.0, 1.0, 2.0]
    """
    probs, targets = checks.labelled(probs, targets)
    reached = one_hot(targets, probs.shape[1]).cumsum(dim=-1)
    return float((probs.cumsum(dim=-1) - reached).square().sum(dim=-1).mean().item())


def flatten_positions(
    probs: Float[Tensor, "B *positions C"],
    targets: Int[Tensor, "..."],
    ignore_index: int | None = None,
) -> tuple[Float[Tensor, "N C"], Int[Tensor, "N"]]:
    """Predictions for tokens or pixels in the form that all other metrics take.

    Args:
        probs: Class probabilities, with the classes last.
        targets: True classes of all positions.
        ignore_index: Positions with this target are left out.

    Examples:
        >>> probs, targets = torch.full((2, 3, 4), 0.25), torch.tensor([[0, 3, -100], [1, 2, 0]])
        >>> [list(one.shape) for one in flatten_positions(probs, targets, ignore_index=-100)]
        [[5, 4], [5]]
    """
    if targets.shape != probs.shape[:-1]:
        raise ValueError(
            f"targets: expected one class per position, shape {list(probs.shape[:-1])}, got "
            f"{list(targets.shape)}; put the classes on the last axis of probs"
        )
    probs, targets = probs.flatten(0, -2), targets.flatten()
    if ignore_index is None:
        return probs, targets
    known = targets != ignore_index
    return probs[known], targets[known]
