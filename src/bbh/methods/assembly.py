"""The last step of every method's constructor: put the parts of a posterior together."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from bbh import checks
from bbh.distribution import WeightDistribution
from bbh.execution import Execution
from bbh.likelihoods import Likelihood, P
from bbh.methods.particles import Particles
from bbh.methods.product import Product
from bbh.network import Forward
from bbh.posterior import AdversarialTraining, Posterior
from bbh.priors import Prior
from bbh.samples import Params, stack


def assemble(
    network: nn.Module,
    weights: WeightDistribution,
    prior: Prior,
    likelihood: Likelihood[P],
    *,
    points: Params,
    forward: Forward | None,
    execution: Execution | None,
    adversarial: AdversarialTraining | None = None,
    always_on: tuple[str, ...] = (),
    chosen: Mapping[str, Any],
) -> Posterior[P]:
    """Makes a posterior of a method's distribution and point estimates of all other parameters.

    Args:
        network: The network that the method was given.
        weights: The distribution over the Bayesian parameters.
        prior: The prior that the method was given.
        likelihood: The likelihood that the method was given.
        points: Values of the trainable parameters that are not Bayesian.
        forward: How to call the network, as the method was told.
        execution: How to put draws through the network, as the method was told.
        adversarial: Settings for training on perturbed inputs as well.
        always_on: Names of modules that stay in training mode for prediction.
        chosen: The values that the method chose for arguments the user left open. They are stored
            with the posterior, since a later version of the library may choose differently.
    """
    _check_last_layer(network, likelihood)
    if points:
        weights = Product([weights, Particles(stack([points]), penalised=())])
    return Posterior(
        network,
        weights,
        prior,
        likelihood,
        forward=forward,
        execution=execution,
        adversarial=adversarial,
        always_on=always_on,
        chosen=chosen,
    )


def _check_last_layer(network: nn.Module, likelihood: Likelihood[Any]) -> None:
    """Raises if a network ends with what the likelihood applies to the outputs, too."""
    last = network
    while isinstance(last, nn.Sequential) and len(last):
        last = last[-1]
    if isinstance(last, likelihood.own_activations):
        kind = type(likelihood).__name__
        raise ValueError(
            f"the network ends with {last}, and {kind} applies that to the outputs itself: leave "
            "the last layer out, e.g. network[:-1]."
        )


def check_positive(**values: float) -> None:
    """Raises if one of these standard deviations is not positive and finite."""
    for name, value in values.items():
        checks.number(name, value, positive=True)
