"""The size of a run: parameters, memory, steps. Nothing is trained and no data are read."""

from dataclasses import dataclass

from bbh_studies.run.run import Run
from bbh_studies.settings.method import count


@dataclass(frozen=True)
class Estimate:
    """The size of a run, as far as it is known before the run starts.

    Attributes:
        weights: Number of weights in the network.
        parameters: Numbers that training adjusts.
        memory_bytes: Bytes of parameters, gradients and the optimiser's state; draws of weights
            and activations come on top.
        steps_per_epoch: Optimiser steps of one epoch.
        steps: Optimiser steps of all epochs together.
    """

    weights: int
    parameters: int
    memory_bytes: int
    steps_per_epoch: int
    steps: int


def estimate(run: Run) -> Estimate:
    """Computes the size of a run from its settings."""
    config = run.config
    network = config.make_network()
    shapes = config.prior.shapes(network)
    parameters = config.method.num_parameters(config.model(), shapes)
    return Estimate(
        weights=count(network),
        parameters=parameters,
        memory_bytes=config.training.memory_bytes(parameters),
        steps_per_epoch=run.steps_per_epoch,
        steps=run.steps_per_epoch * config.all_epochs,
    )
