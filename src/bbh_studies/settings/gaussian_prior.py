"""Settings of the prior over weights, which every method has."""

from dataclasses import dataclass

from torch import nn

from bbh.network import select_bayesian, trainable_parameters
from bbh.priors import FanIn, Normal, Prior
from bbh.samples import Shapes
from bbh_studies.settings.words import check_word


@dataclass(frozen=True)
class GaussianPrior:
    """Which parameters are Bayesian, and their prior.

    Attributes:
        prior: normal for the same prior on all weights, fan_in for one that is narrower by a
            factor of √fan-in.
        prior_scale: Standard deviation, before that factor.
        bayesian: Names of parameters or modules, or glob patterns; by default all parameters but
            those of normalisation layers. Ignored where ``penalised`` names a part.
    """

    prior: str = "normal"
    prior_scale: float = 1.0
    bayesian: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises if there is no such prior."""
        check_word("prior", self.prior, ("normal", "fan_in"))

    def make(self) -> Prior:
        """The prior itself; with ``fan_in`` its width depends on the network's layers."""
        if self.prior == "fan_in":
            return FanIn(self.prior_scale, recurrent=1.0)  # as by default, if a layer is recurrent
        return Normal(self.prior_scale)

    def shapes(self, network: nn.Module) -> Shapes:
        """The parameters that get a distribution, with their shapes."""
        parameters = trainable_parameters(network)
        chosen = select_bayesian(network, self.bayesian or None)
        return {name: parameters[name].shape for name in chosen}
