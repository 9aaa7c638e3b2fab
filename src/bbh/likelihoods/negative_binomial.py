"""The likelihood of counts that vary more than those of independent events."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bbh import checks
from bbh.likelihoods.counts import Counts, Rates
from bbh.likelihoods.regression import rounded

_SMALLEST_DISPERSION = 1e-4


@dataclass(eq=False, repr=False)
class NegativeBinomial(Counts):
    """Counts with mean μ = base_rate · exp(output) and variance μ + dispersion · μ².

    They vary more than Poisson counts, as if every example had a rate of its own around μ. As the
    dispersion goes to 0 they become Poisson counts. It is the form NB2 of textbooks, whose "size"
    or "total count" is 1/dispersion.

    Args:
        dispersion: The dispersion; None if it is not known: it is then learned, one for all
            outputs.
        learned: Whether ``dispersion`` is only the initial value and is learned with the weights.
            None learns it if none is given.
        from_network: Whether the network predicts the dispersion of every example. The last axis
            of its outputs then holds k log rates and k raw dispersions, with
            dispersion = softplus(raw).
        base_rate: The rate where outputs are 0, as for ``Poisson``, which also says what to do
            about exposures.
    """

    dispersion: float | None = None
    learned: bool | None = None
    from_network: bool = False
    base_rate: Rates = None
    log_base: Tensor = field(init=False, repr=False)
    log_dispersion: Tensor = field(init=False, repr=False)

    def __post_init__(self):
        super().__init__()
        if self.dispersion is not None:
            checks.number("dispersion", self.dispersion, positive=True)
        if self.from_network and (self.dispersion is not None or self.learned is not None):
            raise ValueError(
                "NegativeBinomial(from_network=True): the network predicts the dispersion, so "
                "leave out dispersion and learned."
            )
        if self.learned is None and not self.from_network:
            self.learned = self.dispersion is None
        if self.dispersion is None and self.learned is False:
            raise ValueError("NegativeBinomial(learned=False) needs the dispersion.")
        if not self.from_network:
            log_dispersion = torch.tensor(math.log(self.dispersion or 1.0))
            if self.learned:
                self.log_dispersion = nn.Parameter(log_dispersion)
            else:
                self.register_buffer("log_dispersion", log_dispersion)
        self._register_base()

    def parameters_of(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Log rates, and the common dispersion or that of every example."""
        if not self.from_network:
            dispersion = self.log_dispersion.exp().to(outputs.device)
            return self._log_rates(outputs), dispersion.expand_as(outputs)
        if outputs.shape[-1] % 2:
            raise ValueError(
                "NegativeBinomial(from_network=True) needs an even number of outputs, log rates "
                f"then raw dispersions; the network has {outputs.shape[-1]}."
            )
        log_rates, raw = outputs.chunk(2, dim=-1)
        return self._log_rates(log_rates), _SMALLEST_DISPERSION + F.softplus(raw)

    def extra_repr(self) -> str:
        """The present dispersion, and the base rate."""
        if self.from_network:
            return f"from_network=True, {self._base_repr()}"
        dispersion = rounded(self.log_dispersion.exp())
        return f"dispersion={dispersion}, learned={self.learned}, {self._base_repr()}"

    def _constant_dispersion(self, training: Tensor, mean: Tensor) -> Tensor:
        # By moments: the variance is mean + dispersion · mean².
        more = training.var(0, correction=0) - mean
        return (more / mean.square()).clamp(min=_SMALLEST_DISPERSION)
