"""Deep ensembles: several weight settings, trained at the same time."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from bbh.execution import Execution
from bbh.likelihoods import Likelihood, P
from bbh.methods.assembly import assemble
from bbh.methods.particles import Particles
from bbh.methods.registry import register
from bbh.methods.starts import MakeNetwork, starts
from bbh.network import Forward, Selection, divide
from bbh.posterior import AdversarialTraining, Posterior
from bbh.priors import Normal, Prior
from bbh.samples import Params, stack

__all__ = ["deep_ensemble"]


@register
def deep_ensemble(
    network: nn.Module,
    likelihood: Likelihood[P],
    prior: Prior = Normal(1.0),
    *,
    num_members: int = 5,
    make_network: MakeNetwork | None = None,
    adversarial: AdversarialTraining | None = None,
    bayesian: Selection = None,
    freeze_rest: bool = False,
    forward: Forward | None = None,
    execution: Execution | None = None,
) -> Posterior[P]:
    """Several networks trained at the same time, Lakshminarayanan, Pritzel & Blundell (2017).

    The first member starts from ``network`` as it is, the others from a fresh initialisation.
    Members see the same batches. Each has its own parameters and batch-norm statistics; if
    ``bayesian`` is given, members share everything that it does not select. The loss is the mean
    over members, so a plain SGD step is num_members times smaller than for one network. Adam is not
    affected, since it ignores the scale of the loss.

    Args:
        num_members: The number of networks. Pawlowski et al. use 10 on MNIST and 5 on CIFAR5.
        make_network: Makes a freshly initialised network for each further member, where calling
            ``reset_parameters`` on the modules of a copy is not enough.
        adversarial: Settings for training on perturbed inputs as well. The paper's setting is
            ``AdversarialTraining(0.01)``, for images in [0, 1].
    """
    network, values, points = divide(network, bayesian, freeze_rest=freeze_rest)
    networks = list(starts(network, num_members, make_network))
    buffers: Params = {}
    own = [*values]
    if bayesian is None and not freeze_rest:
        buffers = stack([dict(member.named_buffers()) for member in networks])
        # All parameters belong to one distribution, so that a draw is one whole member.
        own, points = [*values, *points], {}
    members = stack([_pick(member, own) for member in networks])
    return assemble(
        network,
        Particles(members, buffers, penalised=values),
        prior,
        likelihood,
        points=points,
        forward=forward,
        execution=execution,
        adversarial=adversarial,
        # Only the start needs it: a stored posterior brings its own weights.
        chosen={"bayesian": None if bayesian is None else list(values), "make_network": None},
    )


def _pick(network: nn.Module, names: Iterable[str]) -> Params:
    parameters: dict[str, Any] = dict(network.named_parameters())
    if missing := [name for name in names if name not in parameters]:
        raise ValueError(f"make_network() gave a network without the parameters {missing}.")
    return {name: parameters[name] for name in names}
