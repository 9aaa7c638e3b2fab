"""KL with a nearest-neighbour estimate of q's entropy and the exact density of the prior."""

import itertools
import logging
import math
from dataclasses import dataclass

from torch import Tensor

from bbh.distribution import Cost
from bbh.divergences.base import Comparison, Divergence
from bbh.divergences.gaussian_cpu import cost_by_tensors
from bbh.divergences.lines_cost import cost_without_entropy_of_h
from bbh.divergences.nearest_neighbour import check_floor
from bbh.divergences.neighbours import log_distances, sum_log_distances
from bbh.lines import Lines
from bbh.samples import size

logger = logging.getLogger("bbh")
# The largest share of samples without k neighbours in their own mode. At this share the bias for
# three narrow modes is about 0.15 nats a weight.
_LONELY = 0.15


@dataclass(frozen=True)
class NearestNeighbourEntropy(Divergence):
    """KL(q‖p) = E_q[−log p(w)] − H(q), estimated for each weight separately and summed.

    The prior term is averaged over the weight samples with the exact density, so means far from
    the prior and a wide q have their full cost. The entropy is estimated after Kozachenko &
    Leonenko (1987) in one dimension,

        H ≈ ψ(n) − ψ(k) + log 2 + mean_i log ν_i,

    where ν_i is the distance to the k-th nearest of the other samples. Correlations between weights
    are ignored, as in ``NearestNeighbour``.

    The estimate has a bias, which depends on n, k and the shape of q. If fewer than k other samples
    share a mode of q, the k-th neighbour lies in another mode, the distance is far too large, and
    training is rewarded for weights with several modes. With too few samples for k a warning says
    so. With ten samples and k = 2 the bias was below 0.15 nats a weight for all shapes tried: see
    the estimator card in the documentation.

    Args:
        neighbours: k, which must be less than the number n of samples. None takes the largest k up
            to 3 that the number of samples allows: 1 below ten, 2 below fourteen. The gradient
            contains 1/ν, whose variance is finite only for k ≥ 3; for k = 2 it grows with the
            logarithm of 1/floor, for k = 1 with 1/floor.
        floor: Distances are √(distance² + floor²), as in ``NearestNeighbour``.
    """

    neighbours: int | None = None
    floor: float = 1e-4
    needs_prior_density = True
    # There are few h, so many draws of them cost nothing beside the weights.
    draws_of_lines = 64

    def __post_init__(self):
        if self.neighbours is not None and self.neighbours < 1:
            raise ValueError(f"neighbours must be at least 1, got {self.neighbours}.")
        check_floor(self.floor)

    def min_samples(self) -> int:
        """k + 1: a sample and its k neighbours."""
        return (self.neighbours or 1) + 1

    def warn_about(self, num_samples: int) -> None:
        """Warns if there are too few samples for k neighbours."""
        neighbours = self.neighbours or default_neighbours(num_samples)
        chance = lonely(num_samples, neighbours)
        if chance > _LONELY:
            enough = next(
                n for n in itertools.count(num_samples) if lonely(n, neighbours) < _LONELY
            )
            logger.warning(
                "NearestNeighbourEntropy with %d samples and %d neighbours rewards weights with "
                "several modes: if a weight has three, the neighbour lies in another mode for %.0f "
                "%% of its samples. Take %d samples or more (num_samples=), or fewer neighbours.",
                num_samples,
                neighbours,
                100 * chance,
                enough,
            )

    def estimate(self, comparison: Comparison) -> Cost:
        """Exact prior term minus the estimated entropy, summed over weights."""
        if comparison.lines is not None:
            return Cost(self._estimate_on_lines(comparison, comparison.lines))
        num_samples, num_weights = comparison.num_samples, size(comparison.shapes)
        neighbours, constant = self._neighbours_and_constant(num_samples)
        cost = cost_by_tensors(comparison, self.floor, neighbours)
        if cost is not None:
            return Cost(cost / num_samples - num_weights * constant)
        generated = comparison.flat()
        log_distance = sum_log_distances(generated, None, self.floor, neighbours)
        entropy = log_distance / num_samples + num_weights * constant
        log_prior = comparison.prior.flat_log_density(generated, comparison.shapes)
        return Cost(-log_prior.mean() - entropy)

    def _estimate_on_lines(self, comparison: Comparison, lines: Lines) -> Tensor:
        """H(m + s·h) = log |s| + H(h): all weights of a tensor have the same H(h)."""
        neighbours, constant = self._neighbours_and_constant(len(lines.moved))
        entropies = log_distances(lines.moved, self.floor, neighbours).mean(0) + constant
        rest = cost_without_entropy_of_h(comparison, lines, self.floor)
        return rest - entropies @ lines.counts

    def _neighbours_and_constant(self, num_samples: int) -> tuple[int, float]:
        """k, and what is added to the mean logarithm of the distance to the k-th neighbour."""
        neighbours = self.neighbours or default_neighbours(num_samples)
        return neighbours, _digamma(num_samples) - _digamma(neighbours) + math.log(2)


def lonely(num_samples: int, neighbours: int) -> float:
    """How often fewer than k other samples share a sample's mode, if there are three equal modes.

    >>> round(lonely(5, 3), 2), round(lonely(10, 2), 2)
    (0.89, 0.14)
    """
    others = num_samples - 1
    # Binomial probabilities by logarithms: whole numbers would have millions of digits for a number
    # of samples that a damaged file may ask for.
    log = [
        math.lgamma(others + 1) - math.lgamma(j + 1) - math.lgamma(others - j + 1)
        for j in range(min(neighbours, others + 1))
    ]
    return sum(
        math.exp(one - j * math.log(3) + (others - j) * math.log(2 / 3))
        for j, one in enumerate(log)
    )


def default_neighbours(num_samples: int) -> int:
    """The largest k up to 3 for which a sample seldom lacks neighbours in its own mode.

    >>> [default_neighbours(n) for n in (5, 9, 10, 13, 14, 100)]
    [1, 1, 2, 2, 3, 3]
    """
    return next((k for k in (3, 2) if lonely(num_samples, k) < _LONELY), 1)


def _digamma(number: int) -> float:
    # For whole numbers ψ(n) = −γ + Σ_{j<n} 1/j.
    euler = 0.5772156649015329
    return -euler + math.fsum(1 / j for j in range(1, number))
