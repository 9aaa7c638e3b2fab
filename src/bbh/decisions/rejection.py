"""Selective prediction: answer only where the error is small enough, and refuse elsewhere."""

import math
from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from bbh.decisions.predictions import Array, flags, same_device, scores
from bbh.decisions.ranks import kth_smallest, rank, share

# Thresholds that are tried: those that answer 5 %, 10 %, …, 100 % of the held-out examples. More
# would come closer to the best one, and each would have to be tested more strictly.
_STEPS = 20


@dataclass(frozen=True)
class Rejection:
    """Answers examples whose uncertainty is below a threshold, and refuses the others.

    Use ``for_error`` or ``for_coverage`` to find the threshold.

    Attributes:
        threshold: Examples below are answered; infinity answers all.
        coverage: The share of held-out examples that are answered.
        error: The share of wrong predictions among those; None if nobody said which are wrong.
        error_bound: With the confidence asked for, the error on new examples is at most this;
            None without a guarantee.
        num_held_out: The number of examples that the threshold was found with.
    """

    threshold: float
    coverage: float
    error: float | None
    error_bound: float | None
    num_held_out: int

    @staticmethod
    def for_error(
        uncertainty: Array, wrong: Array, max_error: float, *, confidence: float | None = 0.95
    ) -> "Rejection":
        """Answers as many examples as the largest acceptable error allows.

        Twenty thresholds are tried, which answer 5 %, 10 %, …, 100 % of the held-out examples, but
        for those that answer too few to show anything. For each of the T left, the number of errors
        among the answers is binomial, and Clopper & Pearson's upper bound holds with a probability
        of 1 − (1 − confidence)/T; so all hold together with ``confidence``. The threshold that
        answers most is taken among those whose bound is at most ``max_error``: for held-out and new
        examples that are drawn alike, the error among new answers is then at most ``max_error``
        with that confidence. The idea is that of Geifman & El-Yaniv (2017), "Selective
        classification for deep neural networks".

        Args:
            uncertainty: Of held-out examples, larger for less certain predictions.
            wrong: Whether each prediction is wrong, as booleans or 0 and 1.
            max_error: The largest acceptable share of wrong answers.
            confidence: How sure the bound must be. None takes the held-out error as it is, and
                guarantees nothing: the threshold was chosen for its low error, so the error on new
                examples may well be larger.
        """
        limit = float(share("max_error", max_error))
        known = scores("uncertainty", uncertainty)
        errors = flags("wrong", wrong, known)
        first, level = 1, None
        if confidence is not None:
            risk = float(1 - share("confidence", confidence))
            first = _first_step(len(known), limit, risk)
            level = risk / (_STEPS + 1 - first)
        order = known.argsort()
        known, errors = known[order], errors[order]
        tried = [_try(known, errors, step, level) for step in range(first, _STEPS + 1)]
        rules = [rule for rule in tried if rule is not None]
        good = [rule for rule in rules if _judged(rule) <= limit]
        if not good:
            raise ValueError(_none_found(rules, max_error))
        return max(good, key=lambda rule: rule.coverage)

    @staticmethod
    def for_coverage(
        uncertainty: Array, coverage: float, wrong: Array | None = None
    ) -> "Rejection":
        """Answers a chosen share of the examples, the least uncertain ones.

        A new example is answered with a probability of at least ``coverage``, and of at most
        coverage + 1/(n + 1) if no uncertainties are tied. Nothing is promised about the error.

        Args:
            uncertainty: Of held-out examples, larger for less certain predictions.
            coverage: The share to answer.
            wrong: Whether each prediction is wrong, if the error is wanted too.
        """
        known = scores("uncertainty", uncertainty)
        k = rank(len(known), float(1 - share("coverage", coverage)), None, "1 - coverage")
        # The next larger number: examples as uncertain as the k-th are answered.
        threshold = math.nextafter(float(kth_smallest(known, k)), math.inf)
        answered = known < threshold
        errors = None if wrong is None else flags("wrong", wrong, known)
        error = None if errors is None else float(errors[answered].mean())
        return Rejection(threshold, float(answered.double().mean()), error, None, len(known))

    def __call__(self, uncertainty: Array) -> Bool[Tensor, " B"]:
        """Which examples are answered."""
        return same_device(scores("uncertainty", uncertainty) < self.threshold, uncertainty)


def _first_step(number: int, limit: float, risk: float) -> int:
    """The first step that passes if none of its answers is wrong, however many steps follow it."""
    for step in range(1, _STEPS):
        if (1 - limit) ** (number * step // _STEPS) <= risk / (_STEPS + 1 - step):
            return step
    return _STEPS


def _try(ordered: Tensor, errors: Tensor, step: int, level: float | None) -> Rejection | None:
    """The rule that answers ``step`` of the twenty parts; None if nobody is below its threshold."""
    below = len(ordered) * step // _STEPS
    # Strictly below an order statistic: given its value, the examples below are independent draws
    # from all that are below it, so their errors are binomial. The example itself is not.
    threshold = math.inf if step == _STEPS else float(ordered[below])
    number = int((ordered < threshold).sum())
    if not number:
        return None
    wrong = int(errors[:number].sum())
    bound = None if level is None else _upper_bound(wrong, number, level)
    return Rejection(threshold, number / len(ordered), wrong / number, bound, len(ordered))


def _upper_bound(wrong: int, number: int, level: float) -> float:
    """The largest error rate that leaves so few errors a probability of ``level``."""
    from scipy.special import betaincinv

    return 1.0 if wrong == number else float(betaincinv(wrong + 1, number - wrong, 1 - level))


def _judged(rule: Rejection) -> float:
    """The number that must not exceed the largest acceptable error."""
    judged = rule.error if rule.error_bound is None else rule.error_bound
    assert judged is not None
    return judged


def _none_found(rules: list[Rejection], max_error: float) -> str:
    best = min(rules, key=_judged)
    if best.error_bound is None:
        found = f"the lowest held-out error is {best.error:.3g}"
        remedy = "Allow a larger error, or take a better uncertainty."
    else:
        found = (
            f"the lowest bound is {best.error_bound:.3g}, where {best.coverage:.0%} of "
            f"{best.num_held_out} held-out examples are answered with an error of {best.error:.3g}"
        )
        remedy = "Hold out more examples, allow a larger error, or ask for less confidence."
    return f"no threshold keeps the error below max_error={max_error:g}: {found}. {remedy}"
