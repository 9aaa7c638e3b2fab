"""What a likelihood is, and what all of them need."""

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from jaxtyping import Float
from torch import Tensor, nn

from bbh.predictive import Predictive

P = TypeVar("P", bound=Predictive)
Sums = dict[str, Tensor]


class Likelihood(nn.Module, ABC, Generic[P]):
    """The distribution p(targets | outputs).

    Attributes:
        keeps_outputs: Whether the predictive distribution needs the outputs of every draw
            (regression). If not, it is built from sums over draws, which take less memory
            (classification).
        prior_scale: The scale of ``bbh.priors.FanIn`` that suits networks for this likelihood, for
            methods that choose a prior themselves. Standardised targets are of the size of one,
            while classes that are certain need logits of ten and more.
    """

    keeps_outputs: ClassVar[bool] = False
    prior_scale: ClassVar[float] = 2.0

    @abstractmethod
    def log_prob(
        self, outputs: Float[Tensor, "S B *event"], targets: Tensor
    ) -> Float[Tensor, "S B"]:
        """log p(target | output), with class weights if there are any."""

    @abstractmethod
    def sums(self, outputs: Float[Tensor, "S B *event"]) -> Sums:
        """Statistics summed over the draws, for ``predictive``."""

    @abstractmethod
    def predictive(self, sums: Sums, num_samples: int, outputs: Tensor | None) -> P:
        """The predictive distribution, from sums over all draws and the outputs if kept.

        It may overwrite the sums, which are not used again.
        """

    @abstractmethod
    def metrics(self, predictive: P, targets: Tensor) -> dict[str, float]:
        """Metrics of a prediction with known targets; always with ``error`` and ``nll``."""

    def constant(self, training: Tensor, targets: Tensor) -> dict[str, float] | None:
        """Metrics of the best prediction that ignores inputs: what any posterior should beat.

        Args:
            training: The targets that the prediction is fitted to.
            targets: The targets it is judged by, for as many examples as you like.

        Returns:
            The same metrics as ``metrics``; None if the likelihood has no such prediction.
        """
        del training, targets


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
