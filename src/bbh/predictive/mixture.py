"""The base of predictive distributions of numbers: one distribution per weight draw."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bbh.predictive.base import Predictive, check_level

_ENTROPY = (
    "the entropy of such a mixture has no closed form. Use total_std for the total uncertainty, "
    "and epistemic_std for what more data would remove"
)


@dataclass(frozen=True, repr=False)
class MixturePredictive(Predictive, ABC):
    """The predictive distribution of a number: an equal mixture of the draws' distributions."""

    not_here: ClassVar[Mapping[str, str]] = {
        "entropy": _ENTROPY,
        "expected_entropy": _ENTROPY,
        "mutual_information": _ENTROPY,
        "confidence": "that is for classes. Use interval",
        "labels": "that is for classes. Use mean",
    }

    @property
    @abstractmethod
    def means(self) -> Float[Tensor, "S B *event"]:
        """Mean of an observation for every draw."""

    @property
    @abstractmethod
    def variances(self) -> Float[Tensor, "S B *event"]:
        """Variance of an observation around the mean of its draw."""

    @property
    def epistemic_std(self) -> Tensor:
        """Standard deviation of the draws' means, which shrinks with more data."""
        return self.means.std(0, correction=0)

    @property
    def aleatoric_std(self) -> Tensor:
        """Root of the mean noise variance, which does not shrink with more data."""
        return self.variances.mean(0).sqrt()

    @property
    def total_std(self) -> Tensor:
        """Standard deviation of a new observation: epistemic and aleatoric together."""
        return (self.epistemic_std.square() + self.aleatoric_std.square()).sqrt()

    def quantiles(self, levels: Sequence[float]) -> Float[Tensor, "Q B *event"]:
        """Exact quantiles of the mixture, by bisection of its distribution function."""
        levels = [float(level) for level in levels]
        if not all(0 < level < 1 for level in levels):
            raise ValueError(f"quantile levels lie strictly between 0 and 1, got {levels}.")
        return torch.stack([self._quantile(level) for level in levels]).to(self.mean.dtype)

    def interval(self, coverage: float) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval that holds ``coverage`` of the mass."""
        check_level("coverage lies", coverage)
        tail = (1 - coverage) / 2
        lower, upper = self.quantiles((tail, 1 - tail))
        return lower, upper

    def log_prob(
        self,
        targets: Float[Tensor, " B *event"],
        observed: Bool[Tensor, " B *event"] | None = None,
    ) -> Float[Tensor, " B"]:
        """log 1/S Σ_s Π_o p(y_o | x, w_s) for every example.

        The outputs o of an example are independent given a draw only, so the product is inside the
        mixture.

        Args:
            targets: Values that were observed.
            observed: Which of them count; None for all.
        """
        if observed is not None:
            targets = targets.masked_fill(~observed, 0)
        return log_mean_over_draws(self._log_probs(targets), observed)

    def sample(self, number: int) -> Float[Tensor, "number B *event"]:
        """New observations. Each comes from one weight draw, the same for all examples."""
        chosen = torch.randint(len(self.means), (number,), device=self.mean.device)
        return self._sample(chosen)

    @abstractmethod
    def _quantile(self, level: float) -> Tensor:
        """The quantile at one level, in double precision."""

    @abstractmethod
    def _log_probs(self, targets: Tensor) -> Tensor:
        """Log probability or density of every target under every draw [S, B, …]."""

    @abstractmethod
    def _sample(self, chosen: Tensor) -> Tensor:
        """One observation from each of the chosen draws."""

    def _uncertainty(self) -> str:
        return (
            f"on average total_std {self.total_std.mean():.3g} and epistemic_std "
            f"{self.epistemic_std.mean():.3g}"
        )


def log_mean_over_draws(
    log_probs: Float[Tensor, "S B *event"], observed: Bool[Tensor, " B *event"] | None = None
) -> Float[Tensor, " B"]:
    """log 1/S Σ_s exp Σ_o log_probs, where only observed outputs o count."""
    if observed is not None:
        log_probs = log_probs.masked_fill(~observed, 0)
    per_draw = log_probs.flatten(2).sum(2) if log_probs.dim() > 2 else log_probs
    return per_draw.logsumexp(0) - math.log(len(per_draw))
