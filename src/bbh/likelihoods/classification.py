"""The likelihood of classes of which one is true."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bbh import checks, metrics
from bbh.likelihoods.base import Likelihood, Sums, readable
from bbh.memory import by_rows
from bbh.predictive import ClassPredictive


@dataclass(eq=False)
class Categorical(Likelihood[ClassPredictive]):
    """Classification: one axis of the outputs holds logits, and targets are integers.

    An example may have one target, or one for each of its positions: tokens [B, T], pixels
    [B, H, W]. Log probabilities of positions add up, so N of the objective counts sequences or
    images. Predictions always have classes on the last axis.

    Args:
        class_weights: One weight per class, for example larger ones for rare classes; a sequence,
            tensor or array of numbers.
        ignore_index: A target that stands for "not known", such as -100 for padding: it is left out
            of training, metrics and comparisons. None if every target is a class.
        class_dim: The axis of the network's outputs that holds classes: the last, or 1 for outputs
            [B, classes, …] as in ``torch.nn.functional.cross_entropy``.
    """

    class_weights: Sequence[float] | Tensor | NDArray[Any] | None = None
    ignore_index: int | None = None
    class_dim: int = -1
    weight_of_class: Tensor = field(init=False, repr=False)

    prior_scale: ClassVar[float] = 5.0
    own_activations = (nn.Softmax,)

    def __post_init__(self):
        super().__init__()
        if self.class_weights is not None:
            self.class_weights = weights_from("class_weights", self.class_weights)
        check_ignore_index(self.ignore_index)
        if self.class_dim == 0:
            raise ValueError(
                f"class_dim={self.class_dim}: give the axis of classes in the outputs of the "
                "network, such as 1 or -1; axis 0 holds the examples."
            )
        weights = torch.tensor(self.class_weights or ())
        self.register_buffer("weight_of_class", weights, persistent=False)

    def classes_last(self, outputs: Float[Tensor, "S B *event"]) -> Float[Tensor, "S B *_ C"]:
        """The logits of all draws with their classes on the last axis."""
        axis = self.class_dim + 1 if self.class_dim > 0 else self.class_dim
        if not -outputs.dim() + 2 <= axis < outputs.dim():
            raise ValueError(
                f"class_dim={self.class_dim}: the network's outputs "
                f"{tuple(outputs.shape[1:])} have no such axis of classes."
            )
        return outputs.movedim(axis, -1)

    def elementwise_log_prob(
        self, outputs: Float[Tensor, "S B *event"], targets: Tensor
    ) -> Float[Tensor, "S B *positions"]:
        """log softmax(outputs)[target] for every position."""
        logits = self.classes_last(outputs)
        self._check(logits, targets)
        index = targets.long().expand(logits.shape[:-1]).unsqueeze(-1)
        chosen = F.log_softmax(logits, dim=-1).gather(-1, index).squeeze(-1)
        if self.class_weights is not None:
            chosen = chosen * self.weight_of_class.to(chosen)[targets.long()]
        return chosen

    def sums(self, outputs: Float[Tensor, "S B *event"]) -> Sums:
        """Sums of the probabilities and of their entropies over the draws."""
        probs = self.classes_last(outputs).softmax(-1)
        return {"probs": probs.sum(0), "entropy": entropy(probs).sum(0)}

    def predictive(self, sums: Sums, num_samples: int, outputs: Tensor | None) -> ClassPredictive:
        """The averaged probabilities and their uncertainties."""
        mean = sums["probs"].div_(num_samples)
        confidence, labels = mean.max(-1)
        return ClassPredictive(
            mean=mean,
            num_samples=num_samples,
            entropy=by_rows(entropy, mean),
            expected_entropy=sums["entropy"].div_(num_samples),
            confidence=confidence,
            labels=labels,
            draws=None if outputs is None else self.classes_last(outputs).softmax(-1),
        )

    def metrics(
        self, predictive: ClassPredictive, targets: Tensor, weights: Tensor | None = None
    ) -> dict[str, float]:
        """Error (per cent), NLL, Brier score and calibration error, averaged over positions."""
        return class_metrics(predictive.mean, targets, self.observed(targets, weights))

    def constant(self, training: Tensor, targets: Tensor) -> dict[str, float]:
        """Metrics of the frequencies of the classes, times their weights if they have any.

        Each class is counted once more than it occurs, so that none is impossible.
        """
        known, judged = self._known(training), self._known(targets)
        num_classes = max(int(known.max()) + 1, int(judged.max()) + 1, len(self.weight_of_class))
        counts = known.bincount(minlength=num_classes) + 1.0
        if self.class_weights is not None:
            counts = counts * self.weight_of_class.to(counts)
        return class_metrics((counts / counts.sum()).expand(len(judged), -1), judged)

    def _marked_as_known(self, targets: Tensor) -> Tensor | None:
        return None if self.ignore_index is None else targets != self.ignore_index

    def _known(self, targets: Tensor) -> Tensor:
        """All targets that count, in one row."""
        observed = self.observed(targets)
        return (targets.flatten() if observed is None else targets[observed]).long()

    def _check(self, logits: Tensor, targets: Tensor) -> None:
        """Raises for targets that are no classes; ignored ones have been replaced by class 0."""
        num_classes = logits.shape[-1]
        if targets.is_floating_point() or targets.shape != logits.shape[1:-1]:
            raise ValueError(
                f"Categorical needs integer targets of shape {tuple(logits.shape[1:-1])} for "
                f"{num_classes} classes (class_dim={self.class_dim} of the network's outputs); got "
                f"{targets.dtype} {tuple(targets.shape)}. One-hot targets go in as "
                "targets.argmax(-1), a column [B, 1] as targets.squeeze(-1). If the outputs are "
                "[B, classes, …], use Categorical(class_dim=1)."
            )
        if self.class_weights is not None and len(self.class_weights) != num_classes:
            raise ValueError(
                f"class_weights has {len(self.class_weights)} entries; the network has "
                f"{num_classes} classes."
            )
        # On a GPU an invalid target makes the look-up itself fail.
        if readable(targets) and not 0 <= targets.min() <= targets.max() < num_classes:
            raise ValueError(
                f"targets run from {int(targets.min())} to {int(targets.max())}; with "
                f"{num_classes} outputs they must lie in 0 … {num_classes - 1}. If one of them "
                "marks targets that are not known, pass it as ignore_index."
            )


def check_ignore_index(ignore_index: object) -> None:
    """Raises unless it is a whole number or None."""
    if ignore_index is not None and (
        not isinstance(ignore_index, int) or isinstance(ignore_index, bool)
    ):
        raise TypeError(
            f"ignore_index={checks.shown(ignore_index)}: give the whole number that marks targets "
            "that are not known, such as -100, or None."
        )


def weights_from(name: str, given: Any) -> tuple[float, ...]:
    """Finite, non-negative weights from a sequence, tensor or array: one per class or output."""
    try:
        weights = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}={checks.shown(given)}: give numbers.") from error
    if weights.dim() != 1 or not weights.isfinite().all() or weights.min() < 0:
        raise ValueError(
            f"{name}={checks.shown(given)}: give one finite weight per class, none of them "
            "negative."
        )
    return tuple(weights.tolist())


def class_metrics(
    probs: Tensor, targets: Tensor, observed: Tensor | None = None
) -> dict[str, float]:
    """Metrics of class probabilities with one target for each position.

    Args:
        probs: Probabilities with the classes on the last axis.
        targets: A class for every position.
        observed: Which targets count; None for all.
    """
    if observed is not None:
        probs, targets = probs[observed], targets[observed]
        if not len(targets):
            raise ValueError("there is nothing to measure: all targets are left out.")
    probs, targets = probs.flatten(0, -2), targets.flatten().long()
    return {
        "error": metrics.error(probs, targets),
        "nll": metrics.nll(probs, targets),
        "brier": metrics.brier(probs, targets),
        "ece": metrics.expected_calibration_error(probs, targets),
    }


def entropy(probs: Tensor) -> Tensor:
    """Entropy over the last axis: ``metrics.entropy`` without its checks, for a softmax."""
    return torch.special.entr(probs).sum(-1)
