"""What a run will take: parameters, memory, steps. Nothing is trained, no data are read."""

from dataclasses import dataclass

from bbh_studies.run.run import Run
from bbh_studies.settings.method import count


@dataclass(frozen=True)
class Estimate:
    """What is known of a run before it starts.

    Attributes:
        weights: Weights of the network.
        parameters: Numbers that training adjusts.
        memory_bytes: Bytes of parameters, gradients and the optimiser's state; draws of weights
            and activations come on top.
        steps_per_epoch: Optimiser steps.
        steps: Optimiser steps of all epochs together.
    """

    weights: int
    parameters: int
    memory_bytes: int
    steps_per_epoch: int
    steps: int


def estimate(run: Run) -> Estimate:
    """The size of a run."""
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
