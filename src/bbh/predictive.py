"""Predictive distributions for new inputs: mixtures over weight draws, and their uncertainty."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

Kind = TypeVar("Kind", bound="Predictive")

# Bisection steps in a quantile search: 2⁻⁶⁰ is below the resolution of float64.
_HALVINGS = 60


@dataclass(frozen=True, repr=False)
class Predictive:
    """The predictive distribution p(y | x, D) ≈ 1/S Σ_s p(y | x, w_s).

    Attributes:
        mean: Mean of the distribution; for classes the averaged probabilities.
        num_samples: S, the number of weight draws in the average.
    """

    # Attributes with the draws on the first axis and the examples on the second.
    per_draw: ClassVar[tuple[str, ...]] = ()

    mean: Float[Tensor, " B *event"]
    num_samples: int

    @staticmethod
    def joined(parts: Sequence[Kind]) -> Kind:
        """The predictions for several batches, made with the same draws, as one.

        >>> first, second = (Predictive(torch.zeros(number, 1), 10) for number in (2, 3))
        >>> Predictive.joined([first, second]).mean.shape
        torch.Size([5, 1])
        """
        if len({part.num_samples for part in parts}) != 1:
            raise ValueError("join one or more predictions that have the same number of draws.")
        kind, values = type(parts[0]), dict[str, Any]()
        for field in fields(kind):
            each = [getattr(part, field.name) for part in parts]
            values[field.name] = each[0]
            if isinstance(each[0], Tensor):
                values[field.name] = torch.cat(each, 1 if field.name in kind.per_draw else 0)
        return kind(**values)

    def to(self: Kind, device: torch.device | str) -> Kind:
        """The same distribution on another device."""
        values: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        moved = {n: v.to(device) for n, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **moved)

    def __repr__(self) -> str:
        shape = list(self.mean.shape)
        return (
            f"{type(self).__name__}({shape[0]:,} examples, mean {shape}, {self.num_samples} weight "
            f"draws, {self._uncertainty()})"
        )

    def _uncertainty(self) -> str:
        """Mean uncertainty over the examples, in words."""
        return "uncertainty unknown"


@dataclass(frozen=True, repr=False)
class ClassPredictive(Predictive):
    """The predictive distribution of classes or of yes/no outputs.

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
class RegressionPredictive(Predictive):
    """The predictive distribution of a regression: a mixture of Gaussians, one per weight draw.

    Attributes:
        locs: Mean of every draw [S, B, …].
        scales: Observation noise (standard deviation) of every draw [S, B, …].
    """

    per_draw: ClassVar[tuple[str, ...]] = ("locs", "scales")

    locs: Float[Tensor, "S B *event"]
    scales: Float[Tensor, "S B *event"]

    @property
    def epistemic_std(self) -> Tensor:
        """Standard deviation of the draws' means, which shrinks with more data."""
        return self.locs.std(0, correction=0)

    @property
    def aleatoric_std(self) -> Tensor:
        """Root of the mean noise variance, which does not shrink with more data."""
        return self.scales.square().mean(0).sqrt()

    @property
    def total_std(self) -> Tensor:
        """Standard deviation of a new observation: epistemic and aleatoric together."""
        return (self.epistemic_std.square() + self.aleatoric_std.square()).sqrt()

    def quantiles(self, levels: Sequence[float]) -> Float[Tensor, "Q B *event"]:
        """Exact quantiles of the mixture, by bisection of its distribution function."""
        levels = [float(level) for level in levels]
        if not all(0 < level < 1 for level in levels):
            raise ValueError(f"quantile levels lie strictly between 0 and 1, got {levels}.")
        locs, scales = self.locs.double(), self.scales.double()
        # Ten scales beyond the outermost mean, the remaining mass is below float64's resolution.
        lower = (locs - 10 * scales).amin(0).expand(len(levels), *self.mean.shape)
        upper = (locs + 10 * scales).amax(0).expand(len(levels), *self.mean.shape)
        wanted = locs.new_tensor(levels).view(-1, *[1] * self.mean.dim())
        for _ in range(_HALVINGS):
            middle = (lower + upper) / 2
            reached = torch.stack([self._distribution_function(m, locs, scales) for m in middle])
            lower = torch.where(reached < wanted, middle, lower)
            upper = torch.where(reached < wanted, upper, middle)
        return ((lower + upper) / 2).to(self.mean.dtype)

    def interval(self, coverage: float) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval that holds ``coverage`` of the mass."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage lies strictly between 0 and 1, got {coverage}.")
        tail = (1 - coverage) / 2
        lower, upper = self.quantiles((tail, 1 - tail))
        return lower, upper

    def _uncertainty(self) -> str:
        return (
            f"on average total_std {self.total_std.mean():.3g} and epistemic_std "
            f"{self.epistemic_std.mean():.3g}"
        )

    @staticmethod
    def _distribution_function(values: Tensor, locs: Tensor, scales: Tensor) -> Tensor:
        return torch.special.ndtr((values - locs) / scales).mean(0)
