"""Nine small regression problems with canonical splits, and the defaults of the library.

The protocol is that of Hernández-Lobato & Adams (2015): one hidden layer of 50 units (100 for
protein), inputs and targets standardised on the training part, everything reported on the targets'
own scale. The seed of a run is also the number of its split.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bbh.likelihoods import Gaussian, Likelihood
from bbh_studies.datasets.uci import UCI, load_uci
from bbh_studies.problems.problem import Problem, Runner
from bbh_studies.problems.study import Rows, Study
from bbh_studies.settings.config import Config
from bbh_studies.settings.hypernets import DEFAULT_HYPERNET, GENERATOR_TITLES, GENERATORS
from bbh_studies.settings.method import Method
from bbh_studies.settings.methods import (
    BayesByBackprop,
    DeepEnsemble,
    Dropout,
    Flows,
    MaximumAPosteriori,
)
from bbh_studies.settings.optimisation import Optimisation
from bbh_studies.settings.words import ConfigError, check_word

# Training is divided into this many epochs, however many passes over the data they are.
EPOCHS = 25


@dataclass(frozen=True)
class Uci(Problem):
    """Regression on one of the sets, with noise that is learned.

    Attributes:
        dataset: Which set.
        split: test, or validation for choosing settings: a fifth of the training part is then held
            out and measured on, and no test example is looked at.
        steps_per_epoch: Steps that count as an epoch; 0 for a 25th of the set's ``steps``.
        units: Width of a hidden layer; 0 for the set's own number.
        layers: The number of hidden layers.
    """

    columns = (
        "RMSE, NLL and CRPS: of the test part, in the targets' units. Cover: share of test targets "
        "within the central 95 % of their prediction. Seeds are splits."
    )
    prediction_samples: int = 200
    dataset: str = "boston"
    split: str = "test"
    steps_per_epoch: int = 0
    units: int = 0
    layers: int = 1

    @property
    def default_seeds(self) -> Sequence[int]:
        """All splits of the set that the study uses."""
        return range(UCI[self.dataset].num_splits)

    def make_network(self, dropout: float | None = None) -> nn.Module:
        """Hidden layers with ReLU, one in the study; there is no place for dropout layers."""
        known = UCI[self.dataset]
        widths = [known.num_inputs, *[self.units or known.hidden] * self.layers]
        hidden = [
            part for sizes in itertools.pairwise(widths) for part in (nn.Linear(*sizes), nn.ReLU())
        ]
        return nn.Sequential(*hidden, nn.Linear(widths[-1], 1))

    def likelihood(self) -> Likelihood[Any]:
        """A Gaussian whose noise is learned, with targets on their own scale."""
        return Gaussian()

    def count_steps(self, batch_size: int) -> int:
        """The setting ``steps_per_epoch``, or a 25th of the set's steps, for all methods."""
        return self.steps_per_epoch or UCI[self.dataset].steps // EPOCHS

    def runner(self, folder: Path | None) -> Runner:
        """Returns what reads a split, trains and measures."""
        # Imported only here: see ``ImageProblem.runner``.
        from bbh_studies.problems.uci.train_and_measure import train_and_measure

        return partial(train_and_measure, folder=folder)

    def inputs(self, folder: Path | None) -> Tensor:
        """The inputs to measure on, of the first split."""
        return load_uci(self.dataset, 0, folder, validation=self.split == "validation").test_inputs

    def check(self) -> None:
        """Raises if there is no such set, split or network."""
        check_word("dataset", self.dataset, UCI)
        check_word("split", self.split, ("test", "validation"))
        if self.layers < 1:
            raise ConfigError(f"layers={self.layers}: take at least one.")


_TRAINING = Optimisation(epochs=EPOCHS, batch_size=100, learning_rate=0.01, cosine_decay=True)


def _row(method: Method) -> Config:
    return Config(method, Uci(), _TRAINING)


def _generated(method: Method) -> Config:
    return _row(method).with_settings(prior="fan_in", prior_scale=2.0, anneal_end=0.3 * EPOCHS)


# The defaults of the library, spelled out so that each can be changed on the command line. Steps,
# batches and learning rates are the same for all methods.
ROWS: Rows = {
    row.method.word: row
    for row in (
        _row(MaximumAPosteriori()),
        _row(DeepEnsemble(num_members=5)),
        _row(BayesByBackprop()),
        _row(Dropout()),
        _row(Flows()),
        _generated(DEFAULT_HYPERNET),
    )
}
STUDIES = (
    Study(
        name="uci",
        title="UCI regression",
        presets={"defaults": ROWS},
        part_setting="dataset",
        parts=tuple(UCI),
    ),
    Study(
        name="uci-generators",
        title="UCI regression: architecture of the generator",
        presets={"defaults": {row: _generated(one) for row, one in GENERATORS.items()}},
        row_titles=GENERATOR_TITLES,
        part_setting="dataset",
        parts=tuple(UCI),
    ),
)
