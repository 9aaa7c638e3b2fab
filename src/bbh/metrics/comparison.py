"""How close two predictive distributions over classes are, whatever the true classes may be."""

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.metrics import checks


def agreement(probs: Float[Tensor, "B C"], reference: Float[Tensor, "B C"]) -> float:
    """Fraction of examples with the same most probable class under both, in [0, 1].

        1/B · Σ_b 1[argmax_c p_bc = argmax_c r_bc]

    Izmailov et al. (2021), "What are Bayesian neural network posteriors really like?", compare
    approximate posteriors with long Markov chains in this way.

    Args:
        probs: Class probabilities; if several are largest, the first class is taken.
        reference: Class probabilities of the distribution to compare with.

    Examples:
        >>> probs = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
        >>> agreement(probs, torch.tensor([[0.7, 0.3], [0.2, 0.8]]))
        0.5
    """
    probs, reference = _checked(probs, reference)
    return int((probs.argmax(dim=-1) == reference.argmax(dim=-1)).sum()) / len(probs)


def total_variation(probs: Float[Tensor, "B C"], reference: Float[Tensor, "B C"]) -> float:
    """Mean total-variation distance between the two distributions of an example, in [0, 1].

        1/B · Σ_b 1/2 · Σ_c |p_bc − r_bc|

    It is the largest difference in the probability of any set of classes, averaged over examples;
    Izmailov et al. (2021) use it beside `agreement`.

    Args:
        probs: Class probabilities.
        reference: Class probabilities of the distribution to compare with.

    Examples:
        >>> probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
        >>> total_variation(probs, torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
        0.25
    """
    probs, reference = _checked(probs, reference)
    dtype = torch.promote_types(probs.dtype, reference.dtype)
    distances = (probs.to(dtype) - reference.to(dtype)).abs().sum(dim=-1) / 2
    return float(distances.mean().item())


def _checked(probs: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    probs = checks.probabilities("probs", probs, num_dims=2)
    reference = checks.probabilities("reference", reference, num_dims=2)
    checks.same_shape("reference", reference, "probs", probs)
    return probs, reference.to(probs.device)
