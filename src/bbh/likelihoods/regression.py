"""The base of likelihoods of real-valued targets, which it standardises for the network."""

import math
from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bbh import metrics
from bbh.likelihoods.base import Likelihood, Sums, check_same_shape, sum_event
from bbh.predictive import RegressionPredictive
from bbh.standardisation import Standardisation, standardisation_of

_SMALLEST_SCALE = 1e-6


class Regression(Likelihood[RegressionPredictive]):
    """Real-valued targets, which may be standardised: targets = loc + scale · (network's scale).

    The network learns targets of mean 0 and standard deviation 1, which is what initialisations and
    priors are made for. Predictions, intervals, log densities and metrics are in the units of the
    targets that the user passes. ``bbh.fit`` learns loc and scale from the training loader before
    the first step, once: training on later keeps them, and so do saved posteriors and checkpoints.
    In a training loop of your own, call ``posterior.likelihood.fit_targets(targets)`` first. Until
    loc and scale are known, nothing is standardised.

    Attributes:
        standardise: Whether ``fit`` learns loc and scale, or the ones to use.
        target_loc: The targets' loc, one number or one per output; empty until it is known.
        target_scale: Their scale, in the same form.
    """

    keeps_outputs = True
    standardise: bool | Standardisation | None
    target_loc: Tensor
    target_scale: Tensor

    @abstractmethod
    def standard(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the observation on the network's scale, of equal shape."""

    @property
    @abstractmethod
    def initial_noise(self) -> float:
        """Standard deviation of the noise, on the network's scale, where outputs are 0."""

    def fit_targets(self, targets: Tensor, weights: Tensor | None = None) -> None:
        """Learns loc and scale from all training targets; earlier ones are replaced.

        Args:
            targets: All training targets. Targets [B] have one loc and scale, and targets
                [B, …, k] have k of each.
            weights: A weight for every example.
        """
        self.set_targets(standardisation_of([(targets, weights)]))

    def set_targets(self, known: Standardisation) -> None:
        """Takes loc and scale from now on."""
        self.target_loc = self.target_loc.new_tensor(known.loc)
        self.target_scale = self.target_scale.new_tensor(known.scale)

    @property
    def waits_for_targets(self) -> bool:
        """Whether loc and scale are to be learned and are not known yet."""
        return self.standardise is True and not self.target_loc.numel()

    def standardised(self, targets: Tensor) -> Tensor:
        """The targets on the network's scale; unchanged if nothing is standardised."""
        if not self.target_loc.numel():
            return targets
        loc, scale = self._known(targets)
        return (targets - loc) / scale

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the observation in the targets' units."""
        loc, scale = self.standard(outputs)
        if not self.target_loc.numel():
            return loc, scale
        target_loc, target_scale = self._known(loc)
        return target_loc + target_scale * loc, target_scale * scale

    def log_prob(
        self, outputs: Float[Tensor, "S B *event"], targets: Tensor
    ) -> Float[Tensor, "S B"]:
        """log N(target; loc, scale²) in the targets' units, summed over outputs."""
        loc, scale = self.standard(outputs)
        check_same_shape(loc, targets)
        residual = (self.standardised(targets) - loc) / scale
        log_prob = -0.5 * residual.square() - scale.log() - 0.5 * math.log(2 * math.pi)
        if self.target_loc.numel():
            # The density of targets is that of standardised ones, divided by the scale.
            log_prob = log_prob - self._known(targets)[1].log()
        return sum_event(log_prob)

    def sums(self, outputs: Float[Tensor, "S B *event"]) -> Sums:
        """No sums, since the outputs of all draws are kept."""
        return {}

    def predictive(
        self, sums: Sums, num_samples: int, outputs: Tensor | None
    ) -> RegressionPredictive:
        """The mixture of the Gaussians of all draws, in the targets' units."""
        if outputs is None:
            raise TypeError("a regression predictive is built from every draw's outputs.")
        locs, scales = self.split(outputs)
        return RegressionPredictive(locs.mean(0), num_samples, locs, scales)

    def metrics(self, predictive: RegressionPredictive, targets: Tensor) -> dict[str, float]:
        """Error (RMSE), NLL of the mixture, coverage of the 95 % interval, CRPS."""
        lower, upper = predictive.interval(0.95)
        locs, scales = predictive.locs, predictive.scales
        return {
            "error": metrics.rmse(predictive.mean, targets),
            "nll": metrics.gaussian_mixture_nll(locs, scales, targets),
            "coverage_95": metrics.interval_coverage(lower, upper, targets),
            "crps": metrics.crps(locs, scales, targets),
        }

    def constant(self, training: Tensor, targets: Tensor) -> dict[str, float]:
        """Metrics of a Gaussian with the mean and standard deviation of every output."""
        known = training.to(torch.promote_types(training.dtype, torch.float32))
        loc = known.mean(0).expand(targets.shape)
        # Targets that are all equal have no spread, but a density needs some.
        scale = known.std(0, correction=0).clamp(min=_SMALLEST_SCALE).expand(targets.shape)
        return self.metrics(RegressionPredictive(loc, 1, loc[None], scale[None]), targets)

    def _register_targets(self) -> None:
        # Empty tensors stand for unknown ones: they move between devices with the module.
        self.register_buffer("target_loc", torch.empty(0))
        self.register_buffer("target_scale", torch.empty(0))
        if isinstance(self.standardise, Standardisation):
            self.set_targets(self.standardise)

    def _known(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """loc and scale of the targets, on the device of ``values``."""
        outputs = self.target_loc.shape[-1] if self.target_loc.dim() else None
        if outputs is not None and outputs != values.shape[-1]:
            raise ValueError(
                f"the likelihood knows loc and scale of {outputs} outputs; there are "
                f"{values.shape[-1]} on the last axis of {list(values.shape)}."
            )
        return self.target_loc.to(values.device), self.target_scale.to(values.device)

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *args: Any, **more: Any
    ) -> None:
        # How many outputs there are is known only after training. Files of 0.1 have neither tensor.
        for name in ("target_loc", "target_scale"):
            own = self.get_buffer(name)
            saved = state_dict.setdefault(prefix + name, own.new_empty(0))
            setattr(self, name, own.new_empty(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *args, **more)

    def _targets_repr(self) -> str:
        if self.target_loc.numel():
            return f"targets={rounded(self.target_loc)} ± {rounded(self.target_scale)}"
        return f"standardise={self.standardise}"


def rounded(values: Tensor) -> str:
    """Few digits of every number, in brackets if there are several."""
    numbers = [f"{number:.4g}" for number in values.detach().flatten().tolist()]
    return numbers[0] if len(numbers) == 1 else f"[{', '.join(numbers)}]"
