"""The base of likelihoods of counts."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bbh import checks, metrics
from bbh.likelihoods.base import Likelihood, Parts, Sums, check_same_shape, readable
from bbh.likelihoods.number_metrics import number_metrics, selected
from bbh.likelihoods.regression import kept, rounded
from bbh.predictive import CountPredictive
from bbh.predictive.counts import negative_binomial_log_prob, poisson_log_prob
from bbh.standardisation import columns

Rates = float | Sequence[float] | Tensor | None


class Counts(Likelihood[CountPredictive]):
    """Counts 0, 1, 2, … with the expected value base_rate · exp(output).

    Counts are never scaled, since a count in other units is no count. What the network learns is
    how far the logarithm of the rate is from that of the base rate, which is of the size of one
    however large the counts are. ``bbh.fit`` takes the mean of the training targets as base rate
    before the first step if none is given; in a training loop of your own, call
    ``posterior.likelihood.fit_targets(targets)`` first.

    Attributes:
        base_rate: The rate where outputs are 0, or None to learn it.
        log_base: The logarithm of the base rate, one number or one per output; empty until it is
            known.
    """

    keeps_outputs = True
    sized_by_targets = ("log_base",)
    base_rate: Rates
    log_base: Tensor

    @abstractmethod
    def parameters_of(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logarithms of the rates, and dispersions if counts are not Poisson."""

    @property
    def waits_for_targets(self) -> bool:
        """Whether the base rate is to be learned and is not known yet."""
        return self.base_rate is None and not self.log_base.numel()

    def summary_of(self, parts: Parts) -> float | tuple[float, ...]:
        """Mean count of every output; one that is always zero gets half a count."""
        total = number = torch.zeros(())
        several = False
        for targets, weights in parts:
            several = targets.dim() > 1
            counts, shares = columns(targets, weights)
            self._check_counts(counts)
            total, number = total + (shares * counts).sum(0), number + shares.sum(0)
        if not bool((number > 0).all()):
            raise ValueError("there are no targets to learn a base rate from.")
        rates = torch.where(total > 0, total, 0.5) / number
        return tuple(rates.tolist()) if several else float(rates)

    def set_targets(self, known: float | Sequence[float]) -> None:
        """Takes a base rate from now on."""
        rates = torch.tensor(known, dtype=torch.float64)
        self.log_base = rates.log().to(self.log_base)

    def elementwise_log_prob(
        self, outputs: Float[Tensor, "S B *event"], targets: Tensor
    ) -> Float[Tensor, "S B *positions"]:
        """Log probability of every count."""
        log_rates, dispersions = self.parameters_of(outputs)
        check_same_shape(log_rates, targets)
        self._check_counts(targets)
        counts = targets.to(log_rates.dtype)
        if dispersions is None:
            return poisson_log_prob(counts, log_rates)
        if targets.device.type == "mps":  # it has no double precision
            return negative_binomial_log_prob(counts, log_rates, dispersions)
        parts = (one.double() for one in (targets, log_rates, dispersions))
        return negative_binomial_log_prob(*parts).to(log_rates.dtype)

    def sums(self, outputs: Float[Tensor, "S B *event"]) -> Sums:
        """No sums, since the outputs of all draws are kept."""
        return {}

    def predictive(self, sums: Sums, num_samples: int, outputs: Tensor | None) -> CountPredictive:
        """The mixture of the distributions of all draws."""
        log_rates, dispersions = self.parameters_of(kept(outputs))
        rates = log_rates.exp()
        return CountPredictive(rates.mean(0), num_samples, rates, dispersions)

    def metrics(
        self, predictive: CountPredictive, targets: Tensor, weights: Tensor | None = None
    ) -> dict[str, float]:
        """Error (RMSE), NLL of the mixture, coverage of the 95 % interval, mean absolute error.

        The interval ends at whole counts, so more than 95 % inside is no sign of bad calibration
        where counts are small.
        """
        observed = self.observed(targets, weights)
        found = number_metrics(predictive, targets.to(predictive.mean.dtype), observed)
        mean, judged = selected(predictive.mean, observed), selected(targets, observed)
        return found | {"mae": metrics.mae(mean, judged)}

    def constant(self, training: Tensor, targets: Tensor) -> dict[str, float]:
        """Metrics of the mean count of every output, with a dispersion if there is one."""
        known = training.to(torch.promote_types(training.dtype, torch.float32))
        mean = known.mean(0).clamp(min=0.5 / len(known))
        rates = mean.expand(targets.shape)
        dispersions = self._constant_dispersion(known, mean)
        if dispersions is not None:
            dispersions = dispersions.expand(targets.shape)[None]
        return self.metrics(CountPredictive(rates, 1, rates[None], dispersions), targets)

    @abstractmethod
    def _constant_dispersion(self, training: Tensor, mean: Tensor) -> Tensor | None:
        """The dispersion of every output, if inputs are ignored."""

    def _register_base(self) -> None:
        self.register_buffer("log_base", torch.empty(0))
        if self.base_rate is not None:
            self.base_rate = _positive(self.base_rate)
            self.set_targets(self.base_rate)

    def _log_rates(self, outputs: Tensor) -> Tensor:
        # Rates are exponentials, for which half precision is too coarse.
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        if not self.log_base.numel():
            return outputs
        if self.log_base.dim() and len(self.log_base) != outputs.shape[-1]:
            raise ValueError(
                f"the likelihood knows base rates of {len(self.log_base)} outputs; there are "
                f"{outputs.shape[-1]} on the last axis of {list(outputs.shape)}."
            )
        return outputs + self.log_base.to(outputs)

    def _check_counts(self, targets: Tensor) -> None:
        if not readable(targets):
            return
        wrong = (
            (targets < 0) | (targets != targets.floor())
            if targets.is_floating_point()
            else (targets < 0)
        )
        if bool(wrong.any()):
            raise ValueError(
                f"{type(self).__name__} needs counts 0, 1, 2, …; {int(wrong.sum())} of "
                f"{targets.numel()} targets are not, such as {targets[wrong][0].item():g}. Pass "
                "counts as they are, neither scaled nor as rates; for other numbers use Gaussian() "
                "or StudentT()."
            )

    def _base_repr(self) -> str:
        known = rounded(self.log_base.exp()) if self.log_base.numel() else "learned"
        return f"base_rate={known}"


def _positive(given: Any) -> float | tuple[float, ...]:
    """One positive number, or one for each output, from a number, sequence or tensor."""
    try:
        rates = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"base_rate={checks.shown(given)}: give numbers, or None.") from error
    if rates.dim() > 1 or not bool((rates.isfinite() & (rates > 0)).all()):
        raise ValueError(
            f"base_rate={checks.shown(given)}: give a positive rate, or one for each output."
        )
    return tuple(rates.tolist()) if rates.dim() else float(rates)
