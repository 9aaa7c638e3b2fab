"""Digits of 8×8 pixels: small and quick, for the demonstration."""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from bbh_studies.datasets import ImageData, load_digits
from bbh_studies.datasets.digits import NUM_TRAIN, NUM_VALIDATION
from bbh_studies.problems.images.problem import ImageProblem
from bbh_studies.problems.study import Study
from bbh_studies.settings.config import Config
from bbh_studies.settings.hypernets import (
    DEFAULT_HYPERNET,
    DEFAULT_TRAINING,
    GENERATOR_TITLES,
    GENERATORS,
    Mixture,
)
from bbh_studies.settings.method import Method
from bbh_studies.settings.methods import (
    BayesByBackprop,
    DeepEnsemble,
    Dropout,
    Flows,
    MaximumAPosteriori,
)
from bbh_studies.settings.optimisation import Optimisation


def digits_network() -> nn.Module:
    """A small convolutional network for 8×8 digits; 13,706 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


@dataclass(frozen=True)
class Digits(ImageProblem):
    """scikit-learn's digits, with drawn letters as outliers."""

    num_train = NUM_TRAIN
    num_validation = NUM_VALIDATION

    def make_network(self, dropout: float | None = None) -> nn.Module:
        """The small network; it has no place for dropout layers."""
        return digits_network()

    def load(self, folder: Path | None) -> ImageData:
        """The digits come with scikit-learn, so no folder is needed."""
        return load_digits()


_METHODS: tuple[Method, ...] = (
    MaximumAPosteriori(),
    DeepEnsemble(num_members=5),
    BayesByBackprop(),
    Dropout(),
    Flows(),
    DEFAULT_HYPERNET,
    Mixture.of(replace(DEFAULT_HYPERNET, likelihood_samples=1)),
)
_TRAINING = Optimisation(epochs=40, batch_size=64, anneal_start=2, anneal_end=20)
STUDIES = (
    Study(
        name="digits",
        title="Digits",
        presets={
            "corrected": {one.word: Config(one, Digits(), _TRAINING) for one in _METHODS},
        },
    ),
    Study(
        name="digits-generators",
        title="Digits: architecture of the generator",
        # The library's defaults, but for the number of epochs, the schedule's exact form and the
        # temperature, which is 1.
        presets={
            "defaults": {
                row: Config(one, Digits(), _TRAINING).with_settings(
                    **DEFAULT_TRAINING, anneal_end=12
                )
                for row, one in GENERATORS.items()
            },
        },
        row_titles=GENERATOR_TITLES,
    ),
)
