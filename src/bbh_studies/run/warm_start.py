"""A warm start: first the MAP estimate is trained, then a distribution around it."""

from dataclasses import replace
from typing import Any

from torch import nn

import bbh
from bbh.training.display import Display
from bbh.training.history import EpochRecord
from bbh_studies.settings.config import Config
from bbh_studies.settings.methods import MaximumAPosteriori
from bbh_studies.settings.optimisation import Optimisation


def first_config(config: Config) -> Config:
    """Settings of the warm start: they train the MAP estimate of the same model.

    The temperature is the same as later, since a prior by fan-in at full weight would leave little
    of the fit to the data.
    """
    training = Optimisation(
        epochs=config.method.warm_epochs,
        batch_size=config.training.batch_size,
        # Constant here: only the later stage lets the rate fall.
        learning_rate=config.training.learning_rate,
        temperature=config.training.temperature,
        gradient_clip=config.training.gradient_clip,
    )
    return Config(MaximumAPosteriori(), config.problem, training, config.prior)


def with_weights_of(posterior: bbh.Posterior[Any], network: nn.Module) -> nn.Module:
    """The network with the weights and the batch-norm statistics of a point estimate."""
    weights = {name: value[0] for name, value in posterior.sample(1).items()}
    network.load_state_dict(posterior.constants() | weights)
    return network


class Later:
    """Shows the epochs of a later stage as a continuation of those of the earlier stage.

    Args:
        display: Where both stages are shown.
        epochs: Epochs of the earlier stage.
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
        """Shows a line once."""
        self._display.note(text)
