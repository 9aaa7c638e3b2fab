"""A warm start: first the MAP estimate is trained, then a distribution around it.

A mixture has several: each of its members starts around an estimate of its own.
"""

import copy
import itertools
from collections.abc import Callable, Iterable
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


def build_points(
    config: Config, number: int, make_network: Callable[[], nn.Module]
) -> bbh.Posterior[Any]:
    """The posterior that the warm start trains: one point estimate, or several side by side.

    Args:
        config: Settings of the warm start.
        number: The number of estimates.
        make_network: Makes a freshly initialised network.
    """
    if number == 1:
        return config.build_posterior(make_network)
    model = config.model(make_network)
    return bbh.methods.mixture(
        make_network(),
        model.likelihood,
        model.prior,
        method=bbh.methods.maximum_a_posteriori,
        num_members=number,
        make_network=make_network,
        bayesian=model.bayesian,
    )


def trained_networks(
    posterior: bbh.Posterior[Any], make_network: Callable[[], nn.Module]
) -> list[nn.Module]:
    """Networks with the weights and the batch-norm statistics of each point estimate."""
    networks: list[nn.Module] = []
    for weights in posterior.sample(posterior.weights.turns).apart():
        networks.append(make_network())
        networks[-1].load_state_dict(posterior.frozen() | posterior.constants() | weights)
    return networks


def in_turn(networks: Iterable[nn.Module]) -> Callable[[], nn.Module]:
    """A function that gives a copy of the next network at every call, again and again."""
    endless = itertools.cycle(networks)
    return lambda: copy.deepcopy(next(endless))


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
