"""Predictive distributions of counts: mixtures of Poisson or negative binomial distributions."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.predictive.mixture import MixturePredictive


@dataclass(frozen=True, repr=False)
class CountPredictive(MixturePredictive):
    """The predictive distribution of counts 0, 1, 2, …: one distribution per weight draw.

    Quantiles are whole numbers: the smallest count that is reached with the given probability. An
    interval therefore holds its coverage or somewhat more.

    Attributes:
        rates: Expected count of every draw [S, B, …].
        dispersions: How much more than a Poisson count the counts of every draw vary, with the
            variance rate + dispersion · rate²; None for Poisson counts.
    """

    per_draw: ClassVar[tuple[str, ...]] = ("rates", "dispersions")

    rates: Float[Tensor, "S B *event"]
    dispersions: Float[Tensor, "S B *event"] | None = None

    @property
    def means(self) -> Float[Tensor, "S B *event"]:
        """The rates."""
        return self.rates

    @property
    def variances(self) -> Float[Tensor, "S B *event"]:
        """Rate + dispersion · rate²."""
        if self.dispersions is None:
            return self.rates
        return self.rates + self.dispersions * self.rates.square()

    def _quantile(self, level: float) -> Tensor:
        upper = self.rates.double().amax(0).ceil()
        while bool((short := self._distribution_function(upper) < level).any()):
            upper = torch.where(short, 2 * upper + 1, upper)
        lower = torch.full_like(upper, -1)
        # Below the resolution of double precision, neighbouring counts are the same number.
        while bool((upper - lower > (upper * 2**-50).clamp(min=1)).any()):
            middle = ((lower + upper) / 2).floor()
            reached = self._distribution_function(middle) >= level
            upper = torch.where(reached, middle, upper)
            lower = torch.where(reached, lower, middle)
        return upper

    def _distribution_function(self, counts: Tensor) -> Tensor:
        """The probability of at most so many, in double precision."""
        rates = self.rates.double()
        if self.dispersions is None:
            return torch.special.gammaincc((counts + 1).expand_as(rates), rates).mean(0)
        # Imported here: SciPy takes a while to import, and torch has no such function.
        from scipy.special import betainc

        size = 1 / self.dispersions.double()
        success = size / (size + rates)
        parts = (one.cpu().numpy() for one in (size, counts + 1, success))
        found = torch.as_tensor(betainc(*parts), dtype=torch.float64, device=rates.device)
        return found.clamp(min=0).mean(0)

    def _log_probs(self, targets: Tensor) -> Tensor:
        # A rate that was rounded to zero has some probability left for every count.
        log_rates = self.rates.double().clamp(min=torch.finfo(torch.float64).tiny).log()
        if self.dispersions is None:
            return poisson_log_prob(targets.double(), log_rates)
        return negative_binomial_log_prob(targets.double(), log_rates, self.dispersions.double())

    def _sample(self, chosen: Tensor) -> Tensor:
        rates = self.rates[chosen]
        if self.dispersions is not None:
            size = 1 / self.dispersions[chosen]
            rates = torch.distributions.Gamma(size, size / rates).sample()
        return torch.poisson(rates)


def poisson_log_prob(counts: Tensor, log_rates: Tensor) -> Tensor:
    """log Poisson(k; λ) = k log λ − λ − log k!."""
    return counts * log_rates - log_rates.exp() - (counts + 1).lgamma()


def negative_binomial_log_prob(counts: Tensor, log_rates: Tensor, dispersions: Tensor) -> Tensor:
    """Log probability of counts with mean μ and variance μ + α μ², for a dispersion α.

        log Γ(k + r) − log Γ(r) − log k! + r log(r / (r + μ)) + k log(μ / (r + μ)),  r = 1/α

    A Gamma mixture of Poisson distributions: the form NB2 of Cameron & Trivedi (1986),
    "Econometric models based on count data". Call it in double precision, since for small α the
    difference of two large logarithms is small.
    """
    size = 1 / dispersions
    log_sum = torch.logaddexp(size.log(), log_rates)
    ways = (counts + size).lgamma() - size.lgamma() - (counts + 1).lgamma()
    return ways + size * (size.log() - log_sum) + counts * (log_rates - log_sum)
