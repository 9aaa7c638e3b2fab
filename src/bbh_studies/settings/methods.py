"""The methods that studies compare: the settings each has, and the posterior it builds."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

import bbh
from bbh import methods
from bbh.likelihoods import Likelihood
from bbh.priors import Prior
from bbh_studies.settings import legacy
from bbh_studies.settings.hypernets import Hypernet, Mixture
from bbh_studies.settings.method import Method, Model, Reference, WithDivergence
from bbh_studies.settings.words import ConfigError, choose

_ALL = "all"
_KERNELS = "kernels"
_DENSE = "dense"


@dataclass(frozen=True)
class MaximumAPosteriori(Method):
    """The MAP estimate: a single weight setting.

    Attributes:
        penalised: Which weights the prior acts on: all, or kernels without biases.
    """

    word = "map"
    title = "MAP"
    can_be_inspected = False
    penalised: str = _ALL

    def build(self, model: Model) -> bbh.Posterior[Any]:
        """A point estimate."""
        network, likelihood, prior, bayesian = _opened(model)
        if _penalises(self.penalised, _KERNELS):
            names = legacy.kernel_names(network)
            return legacy.point_estimate(network, likelihood, prior, penalised=names)
        return methods.maximum_a_posteriori(network, likelihood, prior, bayesian=bayesian)

    @property
    def unstorable(self) -> str:
        """The setting ``penalised``, if the prior acts on a part of the weights only."""
        return _unstorable(self.penalised)


@dataclass(frozen=True)
class DeepEnsemble(Method):
    """Several MAP estimates from different starts.

    Attributes:
        num_members: How many estimates.
        adversarial_epsilon: Size of adversarial perturbations in training; 0 for none.
    """

    word = "ensemble"
    title = "Deep ensemble"
    num_members: int = 10
    adversarial_epsilon: float = 0.0

    def build(self, model: Model) -> bbh.Posterior[Any]:
        """An ensemble whose members have initial weights of their own."""
        network, likelihood, prior, bayesian = _opened(model)
        epsilon = self.adversarial_epsilon
        return methods.deep_ensemble(
            network,
            likelihood,
            prior,
            num_members=self.num_members,
            make_network=model.make_network,
            adversarial=bbh.AdversarialTraining(epsilon) if epsilon else None,
            bayesian=bayesian,
        )


@dataclass(frozen=True)
class BayesByBackprop(WithDivergence):
    """An independent Gaussian for each weight.

    Attributes:
        initial_scale: Standard deviations of these Gaussians at the start.
    """

    word = "bbb"
    title = "Bayes by Backprop"
    initial_scale: float = 0.01

    def build(self, model: Model) -> bbh.Posterior[Any]:
        """A mean-field posterior."""
        network, likelihood, prior, bayesian = _opened(model)
        return methods.bayes_by_backprop(
            network,
            likelihood,
            prior,
            initial_scale=self.initial_scale,
            divergence=self.make_divergence(),
            num_samples=self.num_samples,
            bayesian=bayesian,
        )


@dataclass(frozen=True)
class Dropout(Method):
    """MC dropout: units are switched off at random, in prediction as well.

    Attributes:
        dropout_rate: Probability that a unit is switched off.
        dropout_layers: Put dropout layers into the network, which switch off single units, and let
            the prior act on the weights w themselves: ½‖w‖² for N(0, 1). Otherwise kernels are
            masked, which switches off whole channels, and the prior acts on the masked kernels:
            ½‖w‖²/keep on average.
        penalised: Which weights the prior acts on if there are dropout layers: all, or kernels
            without biases.
    """

    word = "dropout"
    title = "MC dropout"
    can_be_inspected = False
    dropout_rate: float = 0.5
    dropout_layers: bool = False
    penalised: str = _ALL

    def build(self, model: Model) -> bbh.Posterior[Any]:
        """Masked kernels, or the network's own dropout layers left on."""
        network, likelihood, prior, bayesian = _opened(model)
        if not self.dropout_layers:
            return methods.mc_dropout(
                network, likelihood, prior, rate=self.dropout_rate, bayesian=bayesian
            )
        if not legacy.dropout_names(network):
            raise ConfigError("dropout_layers=true: this study's network has no place for them.")
        if _penalises(self.penalised, _KERNELS):
            names = legacy.kernel_names(network)
            return legacy.point_estimate(network, likelihood, prior, penalised=names)
        return methods.mc_dropout(network, likelihood, prior, bayesian=bayesian)

    @property
    def layer_dropout(self) -> float | None:
        """The rate, if the network itself has dropout layers."""
        return self.dropout_rate if self.dropout_layers else None

    @property
    def unstorable(self) -> str:
        """The setting ``penalised``, if the prior acts on a part of the weights only."""
        return _unstorable(self.penalised)


@dataclass(frozen=True)
class Flows(Method):
    """Multiplicative normalising flows.

    Attributes:
        warm_start_epochs: First train MAP weights for this many epochs, and start around them; 0
            starts from a fresh network.
        initial_scale: Standard deviations of the weights at the start.
        max_scale: Upper limit of these standard deviations.
        penalised: Which weights the prior acts on: all, or those of dense layers.
    """

    word = "mnf"
    title = "MNF"
    warm_start_epochs: int = 0
    initial_scale: float = 0.01
    max_scale: float = 0.5
    penalised: str = _ALL

    def build(self, model: Model) -> bbh.Posterior[Any]:
        """Gaussian weights, multiplied by numbers that went through a normalising flow."""
        network, likelihood, prior, bayesian = _opened(model)
        make = (
            partial(legacy.flows, penalised=legacy.dense_names(network))
            if _penalises(self.penalised, _DENSE)
            else partial(methods.multiplicative_normalizing_flows, bayesian=bayesian)
        )
        return make(
            network,
            likelihood,
            prior,
            initial_scale=self.initial_scale,
            max_scale=self.max_scale,
        )

    @property
    def warm_epochs(self) -> int:
        """The setting ``warm_start_epochs``."""
        return self.warm_start_epochs

    @property
    def unstorable(self) -> str:
        """The setting ``penalised``, if the prior acts on a part of the weights only."""
        return _unstorable(self.penalised)


@dataclass(frozen=True)
class Nuts(Reference):
    """The exact posterior, sampled by long Markov chains: the toy problem's reference.

    Attributes:
        refresh_reference: Whether to sample the reference anew, with Pyro, and store it.
    """

    word = "nuts"
    title = "NUTS (reference)"
    refresh_reference: bool = False


@dataclass(frozen=True)
class HamiltonianMonteCarlo(Reference):
    """The published predictions of long Markov chains: the reference on CIFAR-10."""

    word = "hmc"
    title = "HMC (reference)"


METHODS: dict[str, type[Method]] = {
    method.word: method
    for method in (
        MaximumAPosteriori,
        DeepEnsemble,
        BayesByBackprop,
        Dropout,
        Flows,
        Hypernet,
        Mixture,
        Nuts,
        HamiltonianMonteCarlo,
    )
}
METHOD_TITLES = {word: method.title for word, method in METHODS.items()}


def _opened(
    model: Model,
) -> tuple[nn.Module, Likelihood[Any], Prior, tuple[str, ...] | None]:
    """A fresh network and the rest of the model."""
    return model.make_network(), model.likelihood, model.prior, model.bayesian


def _penalises(word: str, part: str) -> bool:
    """Whether the prior acts on the named part of the weights only."""
    return choose("penalised", word, {_ALL: False, part: True})


def _unstorable(penalised: str) -> str:
    return "" if penalised == _ALL else f"penalised={penalised}"
