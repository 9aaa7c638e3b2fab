"""What a run will take: parameters, memory, steps. Nothing is trained, no data are read."""

from dataclasses import dataclass
from functools import partial

from torch import nn

from bbh.samples import size
from bbh_studies.build import bayesian_shapes, build_divergence, build_generator, build_posterior
from bbh_studies.run import Run
from bbh_studies.study import study_of

_BYTES = 4
# A weight, its gradient, and what the optimiser remembers of it.
_COPIES = {"adam": 4, "rmsprop": 3, "rmsprop_tf": 3}


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
    network = study_of(run.study).make_network(config)
    parameters = _num_parameters(run, network)
    each = steps_per_epoch(run)
    return Estimate(
        weights=_count(network),
        parameters=parameters,
        memory_bytes=parameters * _BYTES * _COPIES.get(config.optimizer, 4),
        steps_per_epoch=each,
        steps=each * config.all_epochs,
    )


def steps_per_epoch(run: Run) -> int:
    """Batches in a pass over the study's training data; the reference takes no steps."""
    if run.config.method == "nuts":
        return 0
    return study_of(run.study).steps_per_epoch(run.config)


def _num_parameters(run: Run, network: nn.Module) -> int:
    config, study = run.config, study_of(run.study)
    if config.method == "nuts":
        return 0
    likelihood = study.likelihood(config)
    if config.method != "bbh":
        return _count(build_posterior(config, partial(study.make_network, config), likelihood))
    # Counted, not built: a layer-wise generator of LeNet fills a gigabyte.
    shapes = bayesian_shapes(config, network)
    helper = build_divergence(config).helper(shapes)
    generated = build_generator(config).num_parameters(shapes, config.noise_dim)
    points = _count(network) - size(shapes)
    return generated + points + (0 if helper is None else _count(helper)) + _count(likelihood)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
