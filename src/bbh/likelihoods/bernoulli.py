"""The likelihood of yes and no, for one output or for several labels."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bbh import checks
from bbh.likelihoods.base import Likelihood, Sums, check_same_shape, readable
from bbh.likelihoods.classification import check_ignore_index, class_metrics, weights_from
from bbh.memory import by_rows
from bbh.predictive import ClassPredictive


@dataclass(eq=False)
class Bernoulli(Likelihood[ClassPredictive]):
    """Yes/no outputs: one logit for each, and targets 0 or 1 of the same shape.

    Several outputs are several labels, of which any number may be true. They are independent given
    the weights, so their log probabilities add up. Predictions keep labels apart: probability,
    entropy and mutual information [B, L].

    Args:
        positive_weight: Weight of an output whose target is 1: one number, or one for each label on
            the last axis, for example larger ones for rare labels.
        ignore_index: A target that stands for "not known", such as -1: it is left out of training,
            metrics and comparisons. None if every target is 0 or 1.
    """

    positive_weight: float | Sequence[float] | Tensor | NDArray[Any] = 1.0
    ignore_index: int | None = None
    weight_of_yes: Tensor = field(init=False, repr=False)

    prior_scale: ClassVar[float] = 5.0
    own_activations = (nn.Sigmoid,)

    def __post_init__(self):
        super().__init__()
        check_ignore_index(self.ignore_index)
        if self.ignore_index in (0, 1):
            raise ValueError(f"ignore_index={self.ignore_index}: 0 and 1 are no and yes.")
        if isinstance(self.positive_weight, Real):
            checks.number("positive_weight", self.positive_weight)
        else:
            self.positive_weight = weights_from("positive_weight", self.positive_weight)
        self.register_buffer("weight_of_yes", torch.tensor(self.positive_weight), persistent=False)

    def elementwise_log_prob(
        self, outputs: Float[Tensor, "S B *event"], targets: Tensor
    ) -> Float[Tensor, "S B *positions"]:
        """target·log σ(o) + (1 − target)·log σ(−o) for every output."""
        check_same_shape(outputs, targets)
        self._check_labels(targets)
        if readable(targets):
            low, high = float(targets.min()), float(targets.max())
            if not 0 <= low <= high <= 1:
                raise ValueError(
                    f"Bernoulli needs targets in 0 … 1; they run from {low:g} to {high:g}. For "
                    "several classes use Categorical(). If one of them marks targets that are not "
                    "known, pass it as ignore_index."
                )
        targets = targets.to(outputs.dtype)
        positive = self.weight_of_yes.to(outputs) * targets * F.logsigmoid(outputs)
        return positive + (1 - targets) * F.logsigmoid(-outputs)

    def sums(self, outputs: Float[Tensor, "S B *event"]) -> Sums:
        """Sums of the probabilities and of their binary entropies over the draws."""
        probs = outputs.sigmoid()
        return {"probs": probs.sum(0), "entropy": _binary_entropy(probs).sum(0)}

    def predictive(self, sums: Sums, num_samples: int, outputs: Tensor | None) -> ClassPredictive:
        """The averaged probability of yes for every output, and its uncertainties."""
        mean = sums["probs"].div_(num_samples)
        return ClassPredictive(
            mean=mean,
            num_samples=num_samples,
            entropy=by_rows(_binary_entropy, mean),
            expected_entropy=sums["entropy"].div_(num_samples),
            confidence=by_rows(lambda probs: torch.maximum(probs, 1 - probs), mean),
            labels=by_rows(lambda probs: (probs > 0.5).long(), mean),
            draws=None if outputs is None else outputs.sigmoid(),
        )

    def metrics(
        self, predictive: ClassPredictive, targets: Tensor, weights: Tensor | None = None
    ) -> dict[str, float]:
        """The metrics of ``Categorical`` for two classes, with every output as one example."""
        return _yes_no_metrics(predictive.mean, targets, self.observed(targets, weights))

    def constant(self, training: Tensor, targets: Tensor) -> dict[str, float]:
        """Metrics of the share of yes in every output, with the weight of yes.

        Yes and no are counted once more than they occur, so that neither is impossible.
        """
        known = training.to(torch.get_default_dtype())
        counted = self.observed(training)
        counts = torch.ones_like(known) if counted is None else counted.to(known)
        known = known * counts
        yes = self.weight_of_yes.cpu() * (known.sum(0) + 1)
        no = (counts - known).sum(0) + 1
        yes_share = (yes / (yes + no)).expand_as(targets)
        return _yes_no_metrics(yes_share, targets, self.observed(targets))

    def _marked_as_known(self, targets: Tensor) -> Tensor | None:
        return None if self.ignore_index is None else targets != self.ignore_index

    def _check_labels(self, targets: Tensor) -> None:
        number = len(self.weight_of_yes) if self.weight_of_yes.dim() else None
        if number is not None and (targets.dim() < 2 or targets.shape[-1] != number):
            raise ValueError(
                f"positive_weight has {number} entries, one for each label on the last axis; "
                f"targets have shape {tuple(targets.shape)}."
            )


def _yes_no_metrics(
    yes: Tensor, targets: Tensor, observed: Tensor | None = None
) -> dict[str, float]:
    return class_metrics(torch.stack([1 - yes, yes], dim=-1), targets, observed)


def _binary_entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs) + torch.special.entr(1 - probs)
