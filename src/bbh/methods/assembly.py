"""What the constructors of all methods do at their end."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from bbh.distribution import WeightDistribution
from bbh.execution import Execution
from bbh.likelihoods import Likelihood, P
from bbh.methods.particles import Particles
from bbh.methods.product import Product
from bbh.network import Forward
from bbh.posterior import AdversarialTraining, Posterior, Recipe
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
    """The posterior of a method: its distribution, and point estimates of what that leaves out.

    Args:
        network: As it was given.
        weights: Over the Bayesian parameters.
        prior: As it was given.
        likelihood: As it was given.
        points: The other trainable parameters.
        forward: As it was given.
        execution: As it was given.
        adversarial: Train on perturbed inputs as well.
        always_on: Names of modules that stay in training mode for prediction.
        chosen: What was taken for arguments that were left open, to be stored with the posterior:
            a later version may choose otherwise.
    """
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
        recipe=Recipe("", dict(chosen)),
    )


def check_positive(**values: float) -> None:
    """Raises for a standard deviation that is none."""
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name}={value}: a standard deviation is positive.")
