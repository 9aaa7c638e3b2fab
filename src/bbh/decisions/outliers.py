"""A threshold for outliers: how uncertain is too uncertain for data like the training data."""

from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from bbh.decisions.predictions import Array, same_device, scores
from bbh.decisions.ranks import kth_smallest, rank


@dataclass(frozen=True)
class OutlierThreshold:
    """Flags inputs whose score is above a threshold, and few of those like the held-out ones.

    The threshold is the ⌈(n + 1)(1 − rate)⌉-th smallest of n held-out scores. An example like these
    lies above it with a probability of at most ``rate``, and of at least rate − 1/(n + 1) if no
    scores are tied. How many outliers lie above depends on the score and on the outliers: no
    threshold can promise that. Use ``fit`` to find it.

    Attributes:
        threshold: Scores above are flagged.
        num_held_out: n, the number of scores that the threshold was found with.

    Examples:
        >>> import torch
        >>> flagged = OutlierThreshold.fit(torch.arange(99.0), false_positive_rate=0.05)
        >>> flagged(torch.tensor([3.0, 94.0, 94.5]))
        tensor([False, False,  True])
    """

    threshold: float
    num_held_out: int

    @staticmethod
    def fit(
        held_out: Array, false_positive_rate: float = 0.05, *, confidence: float | None = None
    ) -> "OutlierThreshold":
        """Finds the threshold with scores of held-out examples that are no outliers.

        Args:
            held_out: Scores, larger for less certain predictions, such as ``predictive.entropy`` or
                ``predictive.mutual_information``; for regression ``predictive.epistemic_std``.
            false_positive_rate: The share of ordinary examples that may be flagged, at least
                1/(n + 1).
            confidence: With a number, the rate holds for that share of all held-out sets, instead
                of on average over them.
        """
        known = scores("held_out", held_out)
        k = rank(len(known), false_positive_rate, confidence, "false_positive_rate")
        return OutlierThreshold(float(kth_smallest(known, k)), len(known))

    def __call__(self, new: Array) -> Bool[Tensor, " B"]:
        """Which examples are flagged, from their scores."""
        return same_device(scores("new", new) > self.threshold, new)
