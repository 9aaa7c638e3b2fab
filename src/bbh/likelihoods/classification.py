"""Likelihoods of classes: one of several, or yes and no."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from bbh import checks, metrics
from bbh.likelihoods.base import Likelihood, Sums, check_same_shape, sum_event
from bbh.memory import by_rows
from bbh.predictive import ClassPredictive


@dataclass(eq=False)
class Categorical(Likelihood[ClassPredictive]):
    """Classification: the last axis of the outputs holds logits, targets are integers.

    Args:
        class_weights: One weight per class, for example larger ones for rare classes; a sequence,
            tensor or array of numbers.
    """

    class_weights: Sequence[float] | Tensor | NDArray[Any] | None = None
    weight_of_class: Tensor = field(init=False, repr=False)

    prior_scale: ClassVar[float] = 5.0

    def __post_init__(self):
        super().__init__()
        if self.class_weights is not None:
            self.class_weights = _weights_of_classes(self.class_weights)
        weights = torch.tensor(self.class_weights or ())
        self.register_buffer("weight_of_class", weights, persistent=False)

    def log_prob(
        self, outputs: Float[Tensor, "S B *event"], targets: Tensor
    ) -> Float[Tensor, "S B"]:
        """log softmax(outputs)[target], summed over positions if there are several per example."""
        self._check(outputs, targets)
        log_probs = F.log_softmax(outputs, dim=-1)
        index = targets.long().expand(outputs.shape[:-1]).unsqueeze(-1)
        chosen = log_probs.gather(-1, index).squeeze(-1)
        if self.class_weights is not None:
            chosen = chosen * self.weight_of_class.to(chosen)[targets.long()]
        return sum_event(chosen)

    def sums(self, outputs: Float[Tensor, "S B *event"]) -> Sums:
        """Sums of the probabilities and of their entropies over the draws."""
        probs = outputs.softmax(-1)
        return {"probs": probs.sum(0), "entropy": _entropy(probs).sum(0)}

    def predictive(self, sums: Sums, num_samples: int, outputs: Tensor | None) -> ClassPredictive:
        """The averaged probabilities and their uncertainties."""
        mean = sums["probs"].div_(num_samples)
        confidence, labels = mean.max(-1)
        return ClassPredictive(
            mean=mean,
            num_samples=num_samples,
            entropy=by_rows(_entropy, mean),
            expected_entropy=sums["entropy"].div_(num_samples),
            confidence=confidence,
            labels=labels,
            draws=None if outputs is None else outputs.softmax(-1),
        )

    def metrics(self, predictive: ClassPredictive, targets: Tensor) -> dict[str, float]:
        """Error (per cent), NLL, Brier score and calibration error."""
        return _class_metrics(predictive.mean.flatten(0, -2), targets.flatten())

    def constant(self, training: Tensor, targets: Tensor) -> dict[str, float]:
        """Metrics of the frequencies of the classes, times their weights if they have any.

        Each class is counted once more than it occurs, so that none is impossible.
        """
        known, judged = training.flatten().long(), targets.flatten().long()
        num_classes = max(int(known.max()) + 1, int(judged.max()) + 1, len(self.weight_of_class))
        counts = known.bincount(minlength=num_classes) + 1.0
        if self.class_weights is not None:
            counts = counts * self.weight_of_class.to(counts)
        return _class_metrics((counts / counts.sum()).expand(len(judged), -1), judged)

    def _check(self, outputs: Tensor, targets: Tensor) -> None:
        num_classes = outputs.shape[-1]
        if targets.is_floating_point() or targets.shape != outputs.shape[1:-1]:
            raise ValueError(
                f"Categorical needs integer targets of shape {tuple(outputs.shape[1:-1])} for "
                f"outputs [S, B, …, classes] = {tuple(outputs.shape)}; got {targets.dtype} "
                f"{tuple(targets.shape)}. One-hot targets go in as targets.argmax(-1), a column "
                "[B, 1] as targets.squeeze(-1). Classes are on the last axis of the outputs: move "
                "them there with the forward= argument if yours are elsewhere."
            )
        if self.class_weights is not None and len(self.class_weights) != num_classes:
            raise ValueError(
                f"class_weights has {len(self.class_weights)} entries; the network has "
                f"{num_classes} classes."
            )
        # On a GPU, checking values would make the host wait; there an invalid target makes the
        # look-up itself fail.
        readable = targets.device.type == "cpu" and targets.numel() > 0
        if readable and not 0 <= targets.min() <= targets.max() < num_classes:
            raise ValueError(
                f"targets run from {int(targets.min())} to {int(targets.max())}; with "
                f"{num_classes} outputs they must lie in 0 … {num_classes - 1}."
            )


@dataclass(eq=False)
class Bernoulli(Likelihood[ClassPredictive]):
    """Yes/no outputs: one logit for each, and targets 0 or 1 of the same shape.

    Args:
        positive_weight: Weight of an output whose target is 1.
    """

    positive_weight: float = 1.0

    prior_scale: ClassVar[float] = 5.0

    def __post_init__(self):
        super().__init__()
        checks.number("positive_weight", self.positive_weight)

    def log_prob(
        self, outputs: Float[Tensor, "S B *event"], targets: Tensor
    ) -> Float[Tensor, "S B"]:
        """Σ over outputs of target·log σ(o) + (1 − target)·log σ(−o)."""
        check_same_shape(outputs, targets)
        # Checked on a CPU only, since on a GPU the host would have to wait for the values.
        if targets.device.type == "cpu" and targets.numel() > 0:
            low, high = float(targets.min()), float(targets.max())
            if not 0 <= low <= high <= 1:
                raise ValueError(
                    f"Bernoulli needs targets in 0 … 1; they run from {low:g} to {high:g}. For "
                    "several classes use Categorical()."
                )
        targets = targets.to(outputs.dtype)
        positive = self.positive_weight * targets * F.logsigmoid(outputs)
        return sum_event(positive + (1 - targets) * F.logsigmoid(-outputs))

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

    def metrics(self, predictive: ClassPredictive, targets: Tensor) -> dict[str, float]:
        """The metrics of ``Categorical`` for two classes, with every output as one example."""
        return _yes_no_metrics(predictive.mean, targets)

    def constant(self, training: Tensor, targets: Tensor) -> dict[str, float]:
        """Metrics of the share of yes in every output, with the weight of yes.

        Yes and no are counted once more than they occur, so that neither is impossible.
        """
        known = training.to(torch.get_default_dtype())
        yes = self.positive_weight * (known.sum(0) + 1)
        no = (1 - known).sum(0) + 1
        return _yes_no_metrics((yes / (yes + no)).expand_as(targets), targets)


def _weights_of_classes(given: Any) -> tuple[float, ...]:
    """One finite, non-negative number per class from a sequence, tensor or array."""
    try:
        weights = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"class_weights={checks.shown(given)}: give numbers.") from error
    if weights.dim() != 1 or not weights.isfinite().all() or weights.min() < 0:
        raise ValueError(
            f"class_weights={checks.shown(given)}: give one finite weight per class, none of them "
            "negative."
        )
    return tuple(weights.tolist())


def _class_metrics(probs: Tensor, targets: Tensor) -> dict[str, float]:
    targets = targets.long()
    return {
        "error": metrics.error(probs, targets),
        "nll": metrics.nll(probs, targets),
        "brier": metrics.brier(probs, targets),
        "ece": metrics.expected_calibration_error(probs, targets),
    }


def _yes_no_metrics(yes: Tensor, targets: Tensor) -> dict[str, float]:
    yes = yes.flatten()
    return _class_metrics(torch.stack([1 - yes, yes], dim=1), targets.flatten())


def _entropy(probs: Tensor) -> Tensor:
    # Like metrics.entropy without its checks, which the result of a softmax does not need.
    return torch.special.entr(probs).sum(-1)


def _binary_entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs) + torch.special.entr(1 - probs)
