"""Conformal prediction sets of classes: sets that hold the true class as often as promised."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bbh import checks
from bbh.decisions.predictions import Array, class_probabilities, labelled, same_device
from bbh.decisions.ranks import kth_smallest, rank
from bbh.predictive import ClassPredictive


class ClassScore(ABC):
    """How little a class conforms with a prediction; classes with low scores are in the set."""

    @abstractmethod
    def of(self, probs: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """The score of every class of every example."""


@dataclass(frozen=True)
class LeastAmbiguous(ClassScore):
    """1 − p_c: the smallest sets on average, and the default.

    A set holds all classes above one probability. Easy examples may get empty sets, hard ones too
    few classes. Sadinle, Lei & Wasserman (2019), "Least ambiguous set-valued classifiers with
    bounded error levels".
    """

    def of(self, probs: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """1 − p_c."""
        return 1 - probs


@dataclass(frozen=True)
class Adaptive(ClassScore):
    """The probability of all classes that are more likely: sets grow with the uncertainty.

    A set holds the likeliest classes, one after the other, until they have enough probability
    together. It is never empty. Romano, Sesia & Candès (2020), "Classification with valid and
    adaptive coverage" (APS); with a penalty Angelopoulos et al. (2021), "Uncertainty sets for image
    classifiers using conformal prediction" (RAPS).

    Args:
        penalty: Added for each class by which the set exceeds ``free_classes``; keeps sets small
            where there are many classes.
        free_classes: The size of a set that costs no penalty.
        randomised: Add a random part of the class's own probability (uniform, from torch's
            generator). Sets are smaller and then cover no more than was asked for, also where most
            predictions are certain and right. They may be empty, and the same input may get another
            set.
    """

    penalty: float = 0.0
    free_classes: int = 0
    randomised: bool = False

    def __post_init__(self):
        checks.number("penalty", self.penalty)
        checks.whole("free_classes", self.free_classes, 0, "give a number of classes")

    def of(self, probs: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Cumulated probabilities in descending order, plus the penalty."""
        ordered, order = probs.sort(dim=1, descending=True, stable=True)
        # Of the classes before; cumsum − ordered would leave rounding where there is none before.
        scores = torch.cat([torch.zeros_like(probs[:, :1]), ordered.cumsum(1)[:, :-1]], dim=1)
        if self.randomised:
            scores = scores + torch.rand(len(probs), 1, dtype=probs.dtype) * ordered
        places = torch.arange(1, probs.shape[1] + 1)
        scores = scores + self.penalty * (places - self.free_classes).clamp(min=0)
        return torch.zeros_like(scores).scatter(1, order, scores)


@dataclass(frozen=True)
class ConformalSets:
    """Sets of classes that hold the true one with probability 1 − alpha, on average.

    Split conformal prediction: the set of an example holds all classes whose score is at most a
    threshold, the ⌈(n + 1)(1 − alpha)⌉-th smallest score of the true classes of n held-out
    examples. If these and the new examples are exchangeable, the true class of a new one is in its
    set with a probability of at least 1 − alpha, and of at most 1 − alpha + 1/(n + 1) if no scores
    are tied. Nothing is assumed about the network. The promise is an average over all examples, not
    one for each class or each kind of input. Use ``fit`` to find the threshold.

    Attributes:
        threshold: Classes with scores up to here are in the set.
        score: How little a class conforms.
        num_held_out: n, the number of examples that the threshold was found with.
        num_classes: C.
        allow_empty: Whether a set may be empty; otherwise it holds at least the likeliest class.
    """

    threshold: float
    score: ClassScore
    num_held_out: int
    num_classes: int
    allow_empty: bool = True

    @staticmethod
    def fit(
        predictions: ClassPredictive | Array,
        targets: Array,
        alpha: float = 0.1,
        *,
        score: ClassScore | None = None,
        confidence: float | None = None,
        allow_empty: bool = True,
    ) -> "ConformalSets":
        """Finds the threshold with held-out examples.

        Args:
            predictions: Predictions of held-out examples, or their probabilities [B, C].
            targets: Their classes.
            alpha: The share of sets that may miss the true class. It must be at least 1/(n + 1).
            score: ``LeastAmbiguous()`` (the default) or ``Adaptive()``.
            confidence: With a number, the coverage is at least 1 − alpha for that share of all
                held-out sets, instead of on average over them. Sets are larger then.
            allow_empty: Whether a set may be empty; otherwise it holds at least the likeliest
                class, and sets cover a little more.
        """
        score = LeastAmbiguous() if score is None else score
        checks.instance("score", score, ClassScore, "pass LeastAmbiguous() or Adaptive()")
        probs, classes = labelled(predictions, targets)
        k = rank(len(probs), alpha, confidence, "alpha")
        true = score.of(probs).gather(1, classes.unsqueeze(1)).squeeze(1)
        threshold = float(kth_smallest(true, k))
        return ConformalSets(threshold, score, len(probs), probs.shape[1], allow_empty)

    def __call__(self, predictions: ClassPredictive | Array) -> Bool[Tensor, "B C"]:
        """Which classes are in the set of each example."""
        probs = class_probabilities(predictions)
        if probs.shape[1] != self.num_classes:
            raise ValueError(
                f"predictions have {probs.shape[1]} classes; the held-out ones had "
                f"{self.num_classes}."
            )
        inside = self.score.of(probs) <= self.threshold
        if not self.allow_empty:
            inside = inside.scatter(1, probs.argmax(1, keepdim=True), True)
        return same_device(inside, predictions)
