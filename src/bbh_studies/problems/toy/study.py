"""The toy regression study, the paper's figure 1: six posteriors over functions, and the exact one.

A network of one hidden layer learns twenty noisy values of x³ on [−4, 4], and is asked for its
functions on [−6, 6]. All methods but those of the ``legacy`` preset approximate the same posterior:
N(0, 1) weights and a Gaussian likelihood of known noise. NUTS samples this posterior, so a method's
distance from it can be measured.

In ``corrected`` the network sees inputs and targets with mean 0 and standard deviation 1, by the
moments of the training data. On the raw scale, which ``legacy`` keeps, N(0, 1) weights cannot reach
x³: at x = 6 the functions of the prior have a standard deviation of 43, and the truth is 216.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bbh.likelihoods import Gaussian, Likelihood
from bbh_studies.problems.problem import Problem, Runner
from bbh_studies.problems.study import Rows, Study
from bbh_studies.problems.toy.data import load_toy
from bbh_studies.problems.toy.scaling import Scaled, Scaling
from bbh_studies.settings.config import Config
from bbh_studies.settings.hypernets import Hypernet
from bbh_studies.settings.method import Method
from bbh_studies.settings.methods import (
    BayesByBackprop,
    DeepEnsemble,
    Dropout,
    Flows,
    MaximumAPosteriori,
    Nuts,
)
from bbh_studies.settings.optimisation import Optimisation

HIDDEN_UNITS = 100


def toy_network(scaling: Scaling = Scaling()) -> nn.Module:  # noqa: B008 - frozen
    """1 → 100 ReLU → 1, the same for all methods and the reference; 301 weights.

    Args:
        scaling: The scale on which its layers see the data.
    """
    return Scaled(scaling, nn.Linear(1, HIDDEN_UNITS), nn.ReLU(), nn.Linear(HIDDEN_UNITS, 1))


@dataclass(frozen=True)
class Toy(Problem):
    """Regression of a cubic.

    Attributes:
        noise_scale: Standard deviation of the observation noise.
        standardised: Whether the network sees inputs and targets with mean 0 and standard
            deviation 1, by the moments of the training data. What it predicts, and all metrics,
            are in raw units.
        steps_per_epoch: Full-batch steps that count as an epoch.
    """

    columns = (
        "RMSE: of the mean to x³ on [−6, 6]. To NUTS: Wasserstein distance of the functions to the "
        "exact posterior's. Cover: share of x³ within the functions' central 95 %, among the data "
        "and beyond them."
    )
    noise_scale: float = 9.0
    standardised: bool = False
    steps_per_epoch: int = 1

    @property
    def scaling(self) -> Scaling:
        """The scale on which the network's layers see the data."""
        if not self.standardised:
            return Scaling()
        data = load_toy(self.noise_scale)
        return Scaling.of(data.train_inputs, data.train_targets)

    def make_network(self, dropout: float | None = None) -> nn.Module:
        """The network of one hidden layer; it has no place for dropout layers."""
        return toy_network(self.scaling)

    def likelihood(self) -> Likelihood[Any]:
        """A Gaussian with noise of known size."""
        return Gaussian(self.noise_scale)

    def count_steps(self, batch_size: int) -> int:
        """The setting ``steps_per_epoch``: every step takes all data, whatever the batch size."""
        return self.steps_per_epoch

    def runner(self, folder: Path | None) -> Runner:
        """Returns what trains and measures; the data are made, not read from a folder."""
        # Imported only here: see ``ImageProblem.runner``.
        from bbh_studies.problems.toy.train_and_measure import train_and_measure

        return train_and_measure

    def inputs(self, folder: Path | None) -> Tensor:
        """Points of the grid."""
        return load_toy(self.noise_scale).grid


def _row(method: Method, training: Optimisation, steps: int = 1, **settings: object) -> Config:
    """A row of the table, with its steps per epoch and changes of the settings."""
    problem = Toy(prediction_samples=1000, steps_per_epoch=steps)
    return Config(method, problem, training).with_settings(**settings)


# The same proper posterior for all methods: β rises to 1, weights have the prior N(0, 1), and
# training goes on to convergence.
_CONVERGED = Optimisation(
    epochs=100, batch_size=20, learning_rate=0.02, cosine_decay=True, anneal_end=30
)
_CORRECTED: Rows = {
    "map": _row(MaximumAPosteriori(), _CONVERGED, 10),
    # Without adversarial inputs: they belong to no model, and cost a loop over ten members.
    "ensemble": _row(DeepEnsemble(), _CONVERGED, 10),
    "bbb": _row(BayesByBackprop(num_samples=10, initial_scale=0.1), _CONVERGED, 20),
    "dropout": _row(Dropout(dropout_rate=0.1), _CONVERGED, 20),
    # The limit of 0.5 on MNF's scales stays: without it MNF is further from the reference of raw
    # data.
    "mnf": _row(Flows(initial_scale=0.1), _CONVERGED, 15, learning_rate=0.01),
    # All tensors share one z, since the layers' weights depend on each other given the data. Of
    # shared noise with 1, 2, 4, 8 and 16 dimensions and independent noise with 4, that with 2 had
    # the lowest objective at the end of training (noise 9, seed 10). Rate, widths and number of
    # steps are those chosen on raw data, by the distance to the reference, on other seeds. Neither
    # search is on record.
    "bbh": _row(
        Hypernet(
            divergence="entropy",
            num_samples=10,
            neighbours=2,
            hidden=(16, 32, 64),
            noise_dim=2,
            noise_shared=True,
        ),
        _CONVERGED,
        40,
        learning_rate=0.005,
    ),
    "nuts": _row(Nuts(), _CONVERGED, 20),
}
# What the authors' notebook for the published figure does: forty steps. The KL counts in the first
# four (twenty times too much), and the rest is maximum likelihood. The notebook's estimator for
# hypernetworks lacks the repulsion between draws, a mistake that was mended a year later:
# ``divergence=nearest_neighbour`` is the mended one.
_FORTY_STEPS = Optimisation(epochs=40, batch_size=20, learning_rate=0.1, falling_beta=True)
_LEGACY: Rows = {
    # A temperature of zero leaves the prior out.
    "map": _row(MaximumAPosteriori(), _FORTY_STEPS, temperature=0.0),
    "ensemble": _row(DeepEnsemble(adversarial_epsilon=0.01), _FORTY_STEPS, temperature=0.0),
    "bbb": _row(BayesByBackprop(initial_scale=math.exp(-1.5)), _FORTY_STEPS),
    "dropout": _row(Dropout(), _FORTY_STEPS, temperature=0.0),
    "mnf": _row(Flows(), _FORTY_STEPS),
    "bbh": _row(
        Hypernet(
            num_samples=5,
            likelihood_samples=1,
            divergence="flattened",
            hidden=(16, 32, 64),
            spread=0.0,
            noise_shared=True,
        ),
        _FORTY_STEPS,
        learning_rate=0.02,
    ),
    "nuts": _row(Nuts(), _FORTY_STEPS),
}
STUDIES = (
    Study(
        name="toy",
        title="Toy regression",
        presets={
            "corrected": {
                row: config.with_settings(standardised=True) for row, config in _CORRECTED.items()
            },
            "legacy": _LEGACY,
        },
    ),
)
