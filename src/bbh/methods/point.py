"""Maximum a posteriori: one weight setting."""

from torch import nn

from bbh.execution import Execution
from bbh.likelihoods import Likelihood, P
from bbh.methods.assembly import assemble
from bbh.methods.particles import Particles
from bbh.methods.registry import register
from bbh.network import Forward, Selection, divide
from bbh.posterior import Posterior
from bbh.priors import Normal, Prior
from bbh.samples import stack

__all__ = ["maximum_a_posteriori"]


@register
def maximum_a_posteriori(
    network: nn.Module,
    likelihood: Likelihood[P],
    prior: Prior = Normal(1.0),
    *,
    bayesian: Selection = None,
    freeze_rest: bool = False,
    forward: Forward | None = None,
    execution: Execution | None = None,
) -> Posterior[P]:
    """One weight setting, the mode of the posterior: ordinary training with weight decay."""
    network, values, points = divide(network, bayesian, freeze_rest=freeze_rest)
    return assemble(
        network,
        Particles(stack([values])),
        prior,
        likelihood,
        points=points,
        forward=forward,
        execution=execution,
        chosen={"bayesian": list(values)},
    )
