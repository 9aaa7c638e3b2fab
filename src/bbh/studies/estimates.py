"""What a run will take: parameters, memory, steps. Nothing is trained, no data are read."""

from dataclasses import dataclass

from torch import nn

from bbh.params import Shapes, size
from bbh.studies.build import (
    build_divergence,
    build_generator,
    build_likelihood,
    build_posterior,
)
from bbh.studies.datasets.digits import NUM_TRAIN as NUM_DIGITS
from bbh.studies.datasets.mnist import NUM_VALIDATION
from bbh.studies.datasets.sources import MNIST
from bbh.studies.networks import network_of
from bbh.studies.run import Run

_BYTES = 4
# A weight, its gradient, and what the optimiser remembers of it.
_COPIES = {"adam": 4, "rmsprop": 3, "rmsprop_tf": 3}
_NUM_MNIST = MNIST["train-images-idx3-ubyte"].shape[0] - NUM_VALIDATION


@dataclass(frozen=True)
class Estimate:
    """What is known of a run before it starts.

    Attributes:
        weights: Of the network.
        parameters: That training adjusts.
        memory_bytes: Of parameters, gradients and the optimiser's state; draws of weights and
            activations come on top.
        steps_per_epoch: Optimiser steps.
        steps: In all epochs together.
    """

    weights: int
    parameters: int
    memory_bytes: int
    steps_per_epoch: int
    steps: int


def estimate(run: Run) -> Estimate:
    """The size of a run."""
    config = run.config
    shapes: Shapes = {name: p.shape for name, p in network_of(run.study)().named_parameters()}
    parameters = _num_parameters(run, shapes)
    each = steps_per_epoch(run)
    return Estimate(
        weights=size(shapes),
        parameters=parameters,
        memory_bytes=parameters * _BYTES * _COPIES.get(config.optimizer, 4),
        steps_per_epoch=each,
        steps=each * config.epochs,
    )


def steps_per_epoch(run: Run) -> int:
    """Batches in a pass over the study's training data; the reference takes no steps."""
    if run.config.method == "nuts":
        return 0
    if run.study == "toy":
        return run.config.steps_per_epoch
    return (NUM_DIGITS if run.study == "digits" else _NUM_MNIST) // run.config.batch_size


def _num_parameters(run: Run, shapes: Shapes) -> int:
    config = run.config
    if config.method == "nuts":
        return 0
    likelihood = build_likelihood(run.study, config)
    if config.method != "bbh":
        return _count(build_posterior(config, network_of(run.study), likelihood))
    # Counted, not built: a layer-wise generator of LeNet fills a gigabyte.
    helper = build_divergence(config).helper(shapes)
    generated = build_generator(config).num_parameters(shapes, config.noise_dim)
    return generated + (0 if helper is None else _count(helper)) + _count(likelihood)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
