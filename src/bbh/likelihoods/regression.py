"""The base of likelihoods of real-valued targets, which it standardises for the network."""

from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.likelihoods.base import Likelihood, P, Parts, Sums, check_same_shape
from bbh.residuals import AsymmetricLaplace, Residual
from bbh.standardisation import Standardisation, robust_standardisation_of, standardisation_of


class Regression(Likelihood[P]):
    """Real-valued targets, which may be standardised: targets = loc + scale · (network's scale).

    The network learns targets of mean 0 and standard deviation 1, which is what initialisations and
    priors are made for. Predictions, intervals, log densities and metrics are in the units of the
    targets that the user passes. ``bbh.fit`` learns loc and scale from the training loader before
    the first step, once: training on later keeps them, and so do saved posteriors and checkpoints.
    In a training loop of your own, call ``posterior.likelihood.fit_targets(targets)`` first. Until
    loc and scale are known, nothing is standardised.

    Attributes:
        robust: Whether loc and scale are the median and the median distance from it, which
            outliers hardly change, instead of mean and standard deviation.
        standardise: Whether ``fit`` learns loc and scale, or the ones to use.
        target_loc: The targets' loc, one number or one per output; empty until it is known.
        target_scale: Their scale, in the same form.
    """

    keeps_outputs = True
    sized_by_targets = ("target_loc", "target_scale")
    robust: ClassVar[bool] = False
    standardise: bool | Standardisation | None
    target_loc: Tensor
    target_scale: Tensor

    @abstractmethod
    def standard(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Loc and scale of the observation on the network's scale, of equal shape."""

    @property
    @abstractmethod
    def residual(self) -> Residual | AsymmetricLaplace:
        """How (target − loc) / scale is distributed."""

    @property
    @abstractmethod
    def initial_noise(self) -> float:
        """Scale of the noise, on the network's scale, where outputs are 0."""

    def summary_of(self, parts: Parts) -> Standardisation:
        """Loc and scale of all training targets."""
        return (robust_standardisation_of if self.robust else standardisation_of)(parts)

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
        """Loc and scale of the observation in the targets' units."""
        loc, scale = self.standard(outputs)
        if not self.target_loc.numel():
            return loc, scale
        target_loc, target_scale = self._known(loc)
        return target_loc + target_scale * loc, target_scale * scale

    def elementwise_log_prob(
        self, outputs: Float[Tensor, "S B *event"], targets: Tensor
    ) -> Float[Tensor, "S B *positions"]:
        """Log density of every target, in the targets' units."""
        loc, scale = self.standard(outputs)
        check_same_shape(loc, targets)
        residuals = (self.standardised(targets) - loc) / scale
        log_prob = self.residual.log_density(residuals) - scale.log()
        if self.target_loc.numel():
            # The density of targets is that of standardised ones, divided by the scale.
            log_prob = log_prob - self._known(targets)[1].log()
        return log_prob

    def sums(self, outputs: Float[Tensor, "S B *event"]) -> Sums:
        """No sums, since the outputs of all draws are kept."""
        return {}

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

    def _targets_repr(self) -> str:
        if self.target_loc.numel():
            return f"targets={rounded(self.target_loc)} ± {rounded(self.target_scale)}"
        return f"standardise={self.standardise}"


def kept(outputs: Tensor | None) -> Tensor:
    """The outputs of all draws, without which a distribution of numbers cannot be built."""
    if outputs is None:
        raise TypeError("such a predictive is built from every draw's outputs.")
    return outputs


def rounded(values: Tensor) -> str:
    """Few digits of every number, in brackets if there are several."""
    numbers = [f"{number:.4g}" for number in values.detach().flatten().tolist()]
    return numbers[0] if len(numbers) == 1 else f"[{', '.join(numbers)}]"
