"""The paper's estimators, from distances to the nearest samples of q and of the prior.

Wang, Kulkarni & Verdú (2009): for n samples of q and m of p in d dimensions

    KL ≈ d/n · Σ_i log(ρ_i / ν_i) + log(m / (n − 1)),

where ρ_i is the distance from the i-th sample of q to the nearest sample of p, and ν_i the distance
to the nearest other sample of q.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bbh import checks
from bbh.distribution import Cost
from bbh.divergences.base import Comparison, Divergence
from bbh.divergences.neighbours import TINY, sum_log_distances


@dataclass(frozen=True)
class PriorDistances(Divergence):
    """Compares distances between samples of q with distances to new samples of the prior.

    Args:
        prior_samples: m, the number of prior samples, which are new in every step; None takes as
            many as there are weight samples.
        floor: Distances are √(distance² + floor²), so gradients stay below 1/(2·floor).
    """

    prior_samples: int | None = None
    floor: float = 1e-4

    def __post_init__(self):
        if self.prior_samples is not None and self.prior_samples < 1:
            raise ValueError(f"prior_samples={self.prior_samples}: at least one is needed.")
        check_floor(self.floor)

    def min_samples(self) -> int:
        """Two: a sample and its neighbour."""
        return 2

    def estimate(self, comparison: Comparison) -> Cost:
        """Draws from the prior and compares."""
        generated = comparison.flat()
        reference = comparison.prior_flat(self.prior_samples or len(generated))
        return Cost(self.from_samples(generated, reference))

    @abstractmethod
    def from_samples(
        self, generated: Float[Tensor, "S D"], reference: Float[Tensor, "M D"]
    ) -> Float[Tensor, ""]:
        """The divergence in nats, from samples of q and of the prior."""


@dataclass(frozen=True)
class NearestNeighbour(PriorDistances):
    """The paper's main estimator: each weight separately (d = 1), summed.

    It works well for a narrow q inside the bulk of the prior. It penalises means beyond two prior
    scales and a q wider than the prior too little, since there the penalty grows only
    logarithmically (``NearestNeighbourEntropy`` does not have this problem). It ignores
    correlations between weights: for a factorised prior, the sum of marginal KLs is at most the
    joint KL.

    Args:
        prior_samples: m, the number of prior samples, which are new in every step; None takes as
            many as there are weight samples.
        floor: Distances are √(distance² + floor²), so gradients stay below 1/(2·floor).
    """

    def from_samples(
        self, generated: Float[Tensor, "S D"], reference: Float[Tensor, "M D"]
    ) -> Float[Tensor, ""]:
        """Σ over weights of the mean over samples of log(ρ/ν) + log(m/(n − 1))."""
        num_samples, num_weights = generated.shape
        log_ratio = sum_log_distances(generated, reference, self.floor)
        constant = num_weights * math.log(len(reference) / (num_samples - 1))
        return log_ratio / num_samples + constant


@dataclass(frozen=True)
class JointNearestNeighbour(PriorDistances):
    """Estimates the KL of all weights as one vector (d = D).

    In many dimensions distances concentrate, and the estimate tends to
    D/2 · log((1 + σ² + μ²)/(2σ²)): only the average variance and squared mean matter, and it
    turns negative for a q wider than the prior. It is kept for comparison with the paper.

    Args:
        prior_samples: m, the number of prior samples; None takes as many as there are weight
            samples.
        floor: Distances are √(distance² + floor²), as in ``NearestNeighbour``.
    """

    def from_samples(
        self, generated: Float[Tensor, "S D"], reference: Float[Tensor, "M D"]
    ) -> Float[Tensor, ""]:
        """D · mean_i log(ρ_i/ν_i) + log(m/(n − 1))."""
        num_samples, num_weights = generated.shape
        within = _squared_distances(generated, generated)
        within = within + torch.diag(within.new_full((num_samples,), torch.inf))
        across = _squared_distances(generated, reference)
        within = (within.amin(1) + self.floor**2).sqrt()
        across = (across.amin(1) + self.floor**2).sqrt()
        log_ratio = (across / (within + TINY) + TINY).log()
        # The authors' code multiplies the constant by D as well; the formula does not.
        constant = math.log(len(reference) / (num_samples - 1))
        return num_weights * log_ratio.mean() + constant


def check_floor(floor: float) -> None:
    """Raises if the floor is not positive: equal samples would then have distance 0."""
    checks.number("floor", floor, positive=True)


def _squared_distances(
    left: Float[Tensor, "S D"], right: Float[Tensor, "M D"]
) -> Float[Tensor, "S M"]:
    # One row at a time needs memory for M·D differences instead of S·M·D. Differences are exact,
    # while a Gram matrix loses digits when rows are close.
    return torch.stack([(right - row).square().sum(1) for row in left])
