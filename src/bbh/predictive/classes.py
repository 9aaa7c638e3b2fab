"""Predictive distributions of classes, of yes/no outputs and of ordered levels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bbh.predictive.base import Predictive, check_level


@dataclass(frozen=True, repr=False)
class ClassPredictive(Predictive):
    """The predictive distribution of classes or of yes/no outputs.

    Classes are on the last axis of ``mean`` and ``draws``, wherever the network has them. With
    several positions (tokens, pixels) or several yes/no outputs, every one of them has its own
    entropy, confidence and label. Positions share weights, so a sum of entropies or of mutual
    informations over positions is an upper bound on the example's own.

    Attributes:
        entropy: H[mean], the total uncertainty, in nats.
        expected_entropy: Mean entropy of the single draws: the uncertainty that more data would not
            remove.
        confidence: Probability of the predicted class.
        labels: The predicted class.
        draws: Probabilities of every single draw [S, B, …], with ``keep_draws=True``.
    """

    per_draw: ClassVar[tuple[str, ...]] = ("draws",)

    entropy: Float[Tensor, " B *outputs"]
    expected_entropy: Float[Tensor, " B *outputs"]
    confidence: Float[Tensor, " B *outputs"]
    labels: Int[Tensor, " B *outputs"]
    draws: Tensor | None = None

    @property
    def mutual_information(self) -> Tensor:
        """entropy − expected_entropy: how much the draws disagree, in nats; at least 0."""
        return (self.entropy - self.expected_entropy).clamp(min=0)

    def _uncertainty(self) -> str:
        return (
            f"on average entropy {self.entropy.mean():.3g} and mutual information "
            f"{self.mutual_information.mean():.3g} nats"
        )


@dataclass(frozen=True, repr=False)
class OrdinalPredictive(ClassPredictive):
    """The predictive distribution of ordered levels 0 … K − 1; ``labels`` are the likeliest."""

    @property
    def expected_level(self) -> Float[Tensor, " B *outputs"]:
        """Mean of the level, which treats all steps between levels as equally large."""
        return (self.mean * self._levels()).sum(-1)

    @property
    def level_std(self) -> Float[Tensor, " B *outputs"]:
        """Standard deviation of the level."""
        away = self._levels() - self.expected_level.unsqueeze(-1)
        return (self.mean * away.square()).sum(-1).sqrt()

    def quantiles(self, levels: Sequence[float]) -> Int[Tensor, "Q B *outputs"]:
        """The lowest level that is reached with each of these probabilities."""
        for level in levels:
            check_level("quantile levels lie", float(level))
        # The last entry is 1 but for rounding, which must not lead beyond the highest level.
        below = self.mean.double().cumsum(-1)[..., :-1]
        return torch.stack([(below < float(level)).sum(-1) for level in levels])

    def interval(self, coverage: float) -> tuple[Tensor, Tensor]:
        """Lowest and highest level of the central interval that holds at least ``coverage``."""
        check_level("coverage lies", coverage)
        lower, upper = self.quantiles(((1 - coverage) / 2, (1 + coverage) / 2))
        return lower, upper

    def _levels(self) -> Tensor:
        return torch.arange(self.mean.shape[-1], dtype=self.mean.dtype, device=self.mean.device)
