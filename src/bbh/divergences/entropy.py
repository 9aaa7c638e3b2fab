"""KL with a nearest-neighbour estimate of q's entropy and the exact density of the prior."""

import math
from dataclasses import dataclass

from bbh.distribution import Cost
from bbh.divergences.base import Comparison, Divergence
from bbh.divergences.nearest_neighbour import check_floor
from bbh.divergences.neighbours import sum_log_distances


@dataclass(frozen=True)
class NearestNeighbourEntropy(Divergence):
    """KL(q‖p) = E_q[−log p(w)] − H(q), estimated for each weight separately and summed.

    The prior term is averaged over the weight samples with the exact density, so means far from
    the prior and a wide q have their full cost. The entropy is estimated after Kozachenko &
    Leonenko (1987) in one dimension,

        H ≈ ψ(n) − ψ(k) + log 2 + mean_i log ν_i,

    where ν_i is the distance to the k-th nearest of the other samples. Correlations between weights
    are ignored, as in ``NearestNeighbour``.

    Args:
        neighbours: k, which must be less than the number n of samples. The gradient contains 1/ν,
            whose variance is finite only for k ≥ 3; for smaller k only the floor bounds it.
        floor: Distances are √(distance² + floor²), as in ``NearestNeighbour``.
    """

    neighbours: int = 3
    floor: float = 1e-4
    needs_prior_density = True

    def __post_init__(self):
        if self.neighbours < 1:
            raise ValueError(f"neighbours must be at least 1, got {self.neighbours}.")
        check_floor(self.floor)

    def min_samples(self) -> int:
        """k + 1: a sample and its k neighbours."""
        return self.neighbours + 1

    def estimate(self, comparison: Comparison) -> Cost:
        """Exact prior term minus the estimated entropy, summed over weights."""
        generated = comparison.flat()
        num_samples, num_weights = generated.shape
        constant = _digamma(num_samples) - _digamma(self.neighbours) + math.log(2)
        log_distance = sum_log_distances(generated, None, self.floor, self.neighbours)
        entropy = log_distance / num_samples + num_weights * constant
        log_prior = comparison.prior.flat_log_density(generated, comparison.shapes)
        return Cost(-log_prior.mean() - entropy)


def _digamma(number: int) -> float:
    # For whole numbers ψ(n) = −γ + Σ_{j<n} 1/j.
    euler = 0.5772156649015329
    return -euler + math.fsum(1 / j for j in range(1, number))
