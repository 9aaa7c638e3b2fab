"""Which of n held-out scores is the threshold: the one rule behind all guarantees here.

If n held-out scores and a new one are exchangeable (drawn alike, in any order), the new one is at
most the k-th smallest of the others with probability k/(n + 1), or more if scores are tied. Given
the held-out scores, the share of new scores above the k-th smallest varies as Beta(n + 1 − k, k).
"""

import math
from fractions import Fraction
from numbers import Real

from jaxtyping import Float
from torch import Tensor


def rank(num_scores: int, exceeding: float, confidence: float | None, name: str) -> int:
    """The smallest rank k whose score is exceeded by at most a share of new scores.

    Args:
        num_scores: n, the number of held-out scores.
        exceeding: The largest share of new scores that may lie above.
        confidence: With None the share holds on average over held-out sets, with
            k = ⌈(n + 1)(1 − exceeding)⌉. With a number between 0 and 1 it holds for at least that
            share of all held-out sets, by the Beta law (Vovk, 2012, "Conditional validity of
            inductive conformal predictors").
        name: What the user calls ``exceeding``, for messages.

    >>> rank(99, 0.1, None, "alpha"), rank(99, 0.1, 0.95, "alpha")
    (90, 95)
    """
    level = share(name, exceeding)
    allowed = int(level * (num_scores + 1))  # rounds down, and exactly: 0.29 is 29/100
    if confidence is not None:
        wanted = float(share("confidence", confidence))
        # The share above the k-th smallest varies as Beta(above, n + 1 − above), above = n + 1 − k.
        while allowed and _beta_below(allowed, num_scores + 1 - allowed, float(level)) < wanted:
            allowed -= 1
    if allowed < 1:
        raise ValueError(_too_few(num_scores, level, confidence, name))
    return num_scores + 1 - allowed


def kth_smallest(scores: Float[Tensor, "n *event"], k: int) -> Float[Tensor, "*event"]:
    """The k-th smallest score along the first axis, counted from 1."""
    return scores.sort(dim=0).values[k - 1]


def share(name: str, value: object) -> Fraction:
    """A share strictly between 0 and 1 as the fraction that its digits say; raises for others."""
    if not isinstance(value, Real):
        raise TypeError(f"{name}={value!r}: give a number between 0 and 1.")
    if not 0 < float(value) < 1:
        raise ValueError(f"{name}={float(value):g}: give a number strictly between 0 and 1.")
    return Fraction(str(float(value)))


def _too_few(num_scores: int, level: Fraction, confidence: float | None, name: str) -> str:
    if confidence is None:
        needed, smallest = -(-1 // level) - 1, 1 / (num_scores + 1)
    else:
        # Even the largest of n scores is exceeded too often: (1 − level)^n > 1 − confidence.
        needed = math.ceil(math.log(1 - confidence) / math.log(1 - float(level)))
        smallest = 1 - (1 - confidence) ** (1 / num_scores)
    with_confidence = "" if confidence is None else f" with confidence={confidence:g}"
    return (
        f"{name}={float(level):g}{with_confidence} needs at least {needed} held-out examples, and "
        f"there are {num_scores}: hold out more, or take {name}={_rounded_up(smallest)} or larger."
    )


def _rounded_up(value: float) -> str:
    """Three digits, never below the value: what a message proposes must work."""
    text = f"{value:.3g}"
    return text if float(text) >= value else f"{value * 1.005:.3g}"


def _beta_below(first: int, second: int, value: float) -> float:
    """P(Beta(first, second) ≤ value)."""
    # Imported only when needed: it takes longer than a prediction.
    from scipy.special import betainc

    return float(betainc(first, second, value))
