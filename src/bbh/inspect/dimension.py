"""The number of directions in which draws differ."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.inspect.moments import Moments
from bbh.samples import Shapes

_BLOCK_BYTES = 16 * 2**20


@dataclass(frozen=True)
class EffectiveDimension:
    """Participation ratio of the weights' covariance, (tr Σ)² / tr Σ².

    It is k if there are k directions of equal variance, and less than k if the k variances differ.
    It is not an intrinsic dimension: a bent curve, which has one dimension, has a larger ratio.
    Values are None if no weight varies, or with fewer than four draws.

    Attributes:
        of_sample: The ratio of the sample covariance, which is at most S − 1, however large the
            true ratio is.
        estimate: An estimate without that limit, from unbiased estimates of both traces. With 256
            draws its error is a few per cent, and larger for heavy tails.
        independent: The ratio if weights had the same spreads and were uncorrelated.
        tensors: The estimate for each tensor alone.
        noise: The estimate for each group of generated tensors that share their noise.
        num_samples: The number of draws that ``of_sample`` and the estimates use.
    """

    of_sample: float | None
    estimate: float | None
    independent: float | None
    tensors: Mapping[str, float | None] = field(repr=False)
    noise: Mapping[tuple[str, ...], float | None] = field(repr=False)
    num_samples: int

    @staticmethod
    def of(
        draws: Float[Tensor, "S D"],
        shapes: Shapes,
        moments: Moments,
        groups: Collection[tuple[str, ...]] = (),
    ) -> "EffectiveDimension":
        """Computes it from draws of all weights, and moments of each weight over more draws."""
        # Inner products of draws, [S, S], since the covariance itself would be [D, D]. The traces
        # are the same.
        parts = draws.split([shape.numel() for shape in shapes.values()], dim=1)
        grams = {name: _gram(part) for name, part in zip(shapes, parts, strict=True)}
        gram = _sum(grams, shapes)
        return EffectiveDimension(
            of_sample=_ratio(gram),
            estimate=_estimate(gram),
            independent=_independent(moments),
            tensors={name: _estimate(one) for name, one in grams.items()},
            noise={names: _estimate(_sum(grams, names)) for names in groups},
            num_samples=len(draws),
        )

    def numbers(self) -> dict[str, float | int | dict[str, float | None] | None]:
        """The numbers as a dictionary, ready for JSON."""
        return {
            "of_sample": self.of_sample,
            "estimate": self.estimate,
            "independent": self.independent,
            "tensors": dict(self.tensors),
            "draws": self.num_samples,
        }

    def __str__(self) -> str:
        if self.estimate is None or self.independent is None or self.of_sample is None:
            return "effective dimension: takes four draws, and weights that vary"
        return (
            f"effective dimension: {self.estimate:,.1f} (uncorrelated weights of these spreads: "
            f"{self.independent:,.1f}; of the sample covariance of {self.num_samples} draws: "
            f"{self.of_sample:,.1f})"
        )


def _independent(moments: Moments) -> float | None:
    if moments.number < 4 or not moments.second.any():
        return None
    total, of_square = moments.std.square().sum().square(), moments.variance_squared.sum()
    # An unbiased estimate of a square may be zero or negative, by chance or by rounding.
    return float(total / of_square) if of_square > 1e-12 * total else None


def _gram(draws: Tensor) -> Float[Tensor, "S S"]:
    # In double precision, since draws of trained weights differ only in the last digits. In blocks
    # of weights, since there may be millions.
    gram = draws.new_zeros(len(draws), len(draws), dtype=torch.float64)
    for some in draws.split(max(1, _BLOCK_BYTES // (8 * len(draws))), dim=1):
        deviation = some.double()
        deviation -= deviation.mean(0)
        gram += deviation @ deviation.T
    return gram


def _sum(grams: Mapping[str, Tensor], names: Collection[str]) -> Tensor:
    return torch.stack([grams[name] for name in names]).sum(0)


def _ratio(gram: Tensor) -> float | None:
    return float(gram.trace().square() / gram.square().sum()) if gram.trace() > 0 else None


def _estimate(gram: Tensor) -> float | None:
    """(tr Σ)² / tr Σ², each from its unbiased U-statistic.

    None if no weight varies or if there are fewer than four draws.

        (tr Σ)² = E ‖w₁ − w₂‖² ‖w₃ − w₄‖² / 4,  tr Σ² = E ((w₁ − w₂)·(w₃ − w₄))² / 4

    averaged over all choices of different draws, Chen, Zhang & Zhong (2010), "Tests for
    high-dimensional covariance matrices". The ratio is never below 1, and exactly 1 for draws on a
    line.
    """
    n = len(gram)
    if n < 4 or not gram.trace() > 0:
        return None
    norms = gram.diagonal()
    squared_norms = float(norms.square().sum())
    squared_trace = float(norms.sum().square())
    # The rows of the Gram matrix of centred draws sum to zero, so most sums of the U-statistic
    # vanish and only these remain.
    mixed = float(gram.square().sum()) - squared_norms
    triples = squared_norms - mixed
    quadruples = squared_trace - 4 * squared_norms + 2 * mixed
    pairs = n * (n - 1)
    of_square = (mixed - (2 * triples - quadruples / (n - 3)) / (n - 2)) / pairs
    distances = (norms + norms.unsqueeze(1)) / 2 - gram
    from_one = distances.sum(0)
    disjoint = from_one.sum().square() - 4 * from_one.square().sum() + 2 * distances.square().sum()
    of_trace = float(disjoint) / (pairs * (n - 2) * (n - 3))
    return of_trace / of_square if of_square > 0 else None
