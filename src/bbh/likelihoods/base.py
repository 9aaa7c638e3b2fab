"""What a likelihood is, and what all of them need."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from bbh.predictive import Predictive

P = TypeVar("P", bound=Predictive)
Sums = dict[str, Tensor]
# Targets of a data set in parts, each with weights of its examples or of its targets.
Parts = Iterable[tuple[Tensor, Tensor | None]]


class Likelihood(nn.Module, ABC, Generic[P]):
    """The distribution p(targets | outputs).

    Attributes:
        keeps_outputs: Whether the predictive distribution needs the outputs of every draw
            (regression). If not, it is built from sums over draws, which take less memory
            (classification).
        prior_scale: The scale of ``bbh.priors.FanIn`` that suits networks for this likelihood, for
            methods that choose a prior themselves. Standardised targets are of the size of one,
            while classes that are certain need logits of ten and more.
        own_activations: What the likelihood applies to the outputs itself: a network must not end
            with it.
        sized_by_targets: Names of buffers that are empty until they are learned from targets, and
            whose shape is known only then.
    """

    keeps_outputs: ClassVar[bool] = False
    prior_scale: ClassVar[float] = 2.0
    own_activations: ClassVar[tuple[type[nn.Module], ...]] = ()
    sized_by_targets: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def elementwise_log_prob(
        self, outputs: Float[Tensor, "S B *event"], targets: Tensor
    ) -> Float[Tensor, "S B *positions"]:
        """log p(target | output) of every single target, with class weights if there are any."""

    def log_prob(
        self,
        outputs: Float[Tensor, "S B *event"],
        targets: Tensor,
        weights: Tensor | None = None,
    ) -> Float[Tensor, "S B"]:
        """log p(targets | outputs) of every example: the sum over its targets.

        Args:
            outputs: The network's outputs for every draw.
            targets: One target for every example or for each of its positions.
            weights: One factor for every example [B], or one for every target. A mask is a tensor
                of ``bool``. A target of weight 0 is left out, whatever its value: it may be NaN.
        """
        _check_weights(weights, targets)
        observed = self.observed(targets, weights)
        if observed is not None:
            # Zero is a possible target of every likelihood, so what is left out does no harm.
            targets = targets.masked_fill(~observed, 0)
        each = self.elementwise_log_prob(outputs, targets)
        if observed is not None:
            each = each.masked_fill(~observed, 0)
        if weights is None:
            return sum_event(each)
        # In the objective, the mean over examples divides by their number, not by the sum of the
        # weights: what has weight 2 counts twice.
        if weights.dim() == 1:
            return sum_event(each) * weights.to(each.dtype)
        return sum_event(each * weights.to(each.dtype))

    def observed(
        self, targets: Tensor, weights: Tensor | None = None
    ) -> Bool[Tensor, " B *positions"] | None:
        """Which targets count: those that are not marked as missing and whose weight is not 0.

        Returns:
            True for every target that counts; None if all do.
        """
        counted = self._marked_as_known(targets)
        if weights is None:
            return counted
        weighty = (weights != 0).view(*weights.shape, *[1] * (targets.dim() - weights.dim()))
        weighty = weighty.expand(targets.shape)
        return weighty if counted is None else counted & weighty

    def _marked_as_known(self, targets: Tensor) -> Tensor | None:
        """Which targets are not marked as missing, where a likelihood has a mark for that."""
        del targets

    @abstractmethod
    def sums(self, outputs: Float[Tensor, "S B *event"]) -> Sums:
        """Statistics summed over the draws, for ``predictive``."""

    @abstractmethod
    def predictive(self, sums: Sums, num_samples: int, outputs: Tensor | None) -> P:
        """The predictive distribution, from sums over all draws and the outputs if kept.

        It may overwrite the sums, which are not used again.
        """

    @abstractmethod
    def metrics(
        self, predictive: P, targets: Tensor, weights: Tensor | None = None
    ) -> dict[str, float]:
        """Metrics of a prediction with known targets; always with ``error`` and ``nll``.

        Args:
            predictive: What was predicted.
            targets: What was observed. Targets that are marked as missing are left out.
            weights: Where they are 0, targets are left out; else they do not matter.
        """

    def constant(self, training: Tensor, targets: Tensor) -> dict[str, float] | None:
        """Metrics of the best prediction that ignores inputs: what any posterior should beat.

        Args:
            training: The targets that the prediction is fitted to.
            targets: The targets it is judged by, for as many examples as you like.

        Returns:
            The same metrics as ``metrics``; None if the likelihood has no such prediction.
        """
        del training, targets

    @property
    def waits_for_targets(self) -> bool:
        """Whether ``fit`` should read all training targets before the first step."""
        return False

    def summary_of(self, parts: Parts) -> Any:
        """What the likelihood wants to know about the training targets, for ``set_targets``."""
        raise TypeError(f"{type(self).__name__} learns nothing from targets before training.")

    def set_targets(self, known: Any) -> None:
        """Takes what ``summary_of`` found from now on."""
        raise TypeError(f"{type(self).__name__} learns nothing from targets before training.")

    def fit_targets(self, targets: Tensor, weights: Tensor | None = None) -> None:
        """Learns from all training targets what ``fit`` would learn before the first step.

        Call it before a training loop of your own. What was learned earlier is replaced.

        Args:
            targets: All training targets. Targets [B] are values of one output, and targets
                [B, …, k] of k outputs.
            weights: A weight for every example or for every target.
        """
        self.set_targets(self.summary_of([(targets, weights)]))

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *args: Any, **more: Any
    ) -> None:
        for name in self.sized_by_targets:
            own = self.get_buffer(name)
            # Files of 0.1 do not have all of them.
            saved = state_dict.setdefault(prefix + name, own.new_empty(0))
            setattr(self, name, own.new_empty(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *args, **more)


def sum_event(values: Tensor) -> Tensor:
    """Sums log probabilities [S, B, …] over the outputs of every example, to [S, B]."""
    return values.flatten(2).sum(2) if values.dim() > 2 else values


def check_same_shape(outputs: Tensor, targets: Tensor) -> None:
    """Raises if the targets [B, …] do not have the shape of the outputs [S, B, …] of a draw."""
    if targets.shape != outputs.shape[1:]:
        remedy = (
            "They must be equal: broadcasting [B] against [B, 1] would compare every target with "
            "every output. Reshape the targets."
            if targets.numel() == outputs[0].numel()
            else "They must be equal: one target for every output. For class labels use "
            "Categorical()."
        )
        raise ValueError(
            f"targets have shape {tuple(targets.shape)}, the network's outputs for them "
            f"{tuple(outputs.shape[1:])}. {remedy}"
        )


def readable(targets: Tensor) -> bool:
    """Whether values can be checked: on a GPU the host would have to wait for them."""
    return targets.device.type == "cpu" and targets.numel() > 0


def _check_weights(weights: Tensor | None, targets: Tensor) -> None:
    if weights is None:
        return
    if weights.shape in (targets.shape[:1], targets.shape):
        if readable(weights) and weights.dtype != torch.bool and not bool((weights >= 0).all()):
            raise ValueError(f"weights are negative or NaN, down to {float(weights.min()):g}.")
        return
    allowed = sorted({tuple(targets.shape[:1]), tuple(targets.shape)})
    raise ValueError(
        f"weights have shape {tuple(weights.shape)}; one per example is needed, or one per target: "
        f"{' or '.join(map(str, allowed))}."
    )
