"""Starts from trained weights: first the MAP estimate, then a distribution around it."""

from dataclasses import replace
from typing import Any

from torch import nn

import bbh
from bbh.training.display import Display
from bbh.training.history import EpochRecord
from bbh_studies.config import Config


def first_config(config: Config) -> Config:
    """How the weights to start around are trained: as the MAP estimate of the same model.

    At the same temperature, since a prior by fan-in at full weight leaves little of the fit.
    """
    return Config(
        "map",
        epochs=config.warm_start_epochs,
        batch_size=config.batch_size,
        # All the while: it is the later stage that lets the rate fall.
        learning_rate=config.learning_rate,
        temperature=config.temperature,
        gradient_clip=config.gradient_clip,
        prior=config.prior,
        prior_scale=config.prior_scale,
        bayesian=config.bayesian,
    )


def with_weights_of(posterior: bbh.Posterior[Any], network: nn.Module) -> nn.Module:
    """The network with the weights, and statistics, of a point estimate."""
    weights = {name: value[0] for name, value in posterior.sample(1).items()}
    network.load_state_dict(posterior.constants() | weights)
    return network


class Later:
    """Shows epochs of a later stage behind those of the earlier one.

    Args:
        display: Of both stages.
        epochs: Of the earlier one.
    """

    def __init__(self, display: Display, epochs: int):
        self._display = display
        self._epochs = epochs

    def step(self, epoch: int, step: int, terms: dict[str, float]) -> None:
        """Called after training steps."""
        self._display.step(self._epochs + epoch, step, terms)

    def epoch(self, record: EpochRecord) -> None:
        """Called after every epoch."""
        self._display.epoch(replace(record, epoch=self._epochs + record.epoch))

    def note(self, text: str) -> None:
        """Something to say once."""
        self._display.note(text)
