"""The optimizer and the schedules that ``fit`` takes where it is given none."""

from collections.abc import Iterable
from typing import Any

from lightning_fabric import Fabric
from torch import nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from bbh.annealing import Linear, Schedule
from bbh.distribution import TrainingDefaults
from bbh.generators.factored.adam import make_adam
from bbh.posterior import Posterior
from bbh.training.step import scales_losses

# Learning rate of the likelihood's own parameters, in units of that of the weights.
_FASTER = 10.0


def default_beta(defaults: TrainingDefaults, epochs: float) -> float | Schedule:
    """A weight of the complexity that rises over the first share of the epochs, or is 1."""
    return Linear(0, defaults.annealing * epochs) if defaults.annealing else 1.0


def default_optimizer(
    posterior: Posterior[Any],
    fabric: Fabric,
    learning_rate: float,
    parameters: Iterable[nn.Parameter],
) -> Optimizer:
    """Adam, where possible fused: it updates a weight and its moments in a single pass.

    It is not fused under a loss scaler, since a fused step would unscale the gradients by itself.
    With several processes it does not use factored gradients, since the gradients that processes
    exchange must be whole matrices.
    """
    rated = rated_groups(posterior, learning_rate, parameters)
    if fabric.device.type not in ("cpu", "cuda") or scales_losses(fabric):
        return Adam(rated)
    if fabric.world_size > 1:
        return Adam(rated, fused=True)
    return make_adam(posterior.weights, rated)


def rated_groups(
    posterior: Posterior[Any], learning_rate: float, parameters: Iterable[nn.Parameter]
) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer, with a higher rate for those of the likelihood."""
    single = {id(one) for one in posterior.likelihood.parameters()}
    groups: dict[bool, list[nn.Parameter]] = {False: [], True: []}
    for one in parameters:
        groups[id(one) in single].append(one)
    return [
        {"params": found, "lr": (_FASTER if fast else 1) * learning_rate}
        for fast, found in groups.items()
        if found
    ]


def cooling(steps: int, share: float, optimizer: Optimizer) -> LRScheduler:
    """A rate that is constant at first and falls linearly to a hundredth over the last share."""

    def factor(step: int) -> float:
        return max(0.01, min(1.0, (steps - step) / (share * steps)))

    return LambdaLR(optimizer, factor)
