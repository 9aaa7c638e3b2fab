"""The data of the toy study: noisy values of a cubic, and where functions are compared."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bbh_studies.datasets.sources import fingerprint

# Where the training inputs lie: |x| ≤ 4. The grid goes on to 6.
INSIDE = 4.0
OUTSIDE = 6.0
_NUM_TRAIN = 20
_NUM_GRID = 500
_NUM_TEST = 1000
# The training data have the seed of the authors' notebook, the fresh data an arbitrary other one.
_TRAIN_SEED = 1
_TEST_SEED = 2


@dataclass(frozen=True)
class ToyData:
    """y = x³ + ε with ε ~ N(0, noise_scale²), every tensor a column [B, 1].

    Attributes:
        noise_scale: Standard deviation of ε, known to the likelihood.
        train_inputs: 20 points of U(−4, 4).
        train_targets: Their noisy values.
        grid: 500 equidistant points on [−6, 6].
        truth: x³ on the grid.
        test_inputs: 1000 fresh points of U(−4, 4).
        test_targets: Their noisy values.
        outer_inputs: 1000 points with 4 < |x| < 6, where there were no data.
        outer_targets: Their noisy values.
        fingerprint: Short checksum of the training data, for records.
    """

    noise_scale: float
    train_inputs: Float[Tensor, "train 1"]
    train_targets: Float[Tensor, "train 1"]
    grid: Float[Tensor, "points 1"]
    truth: Float[Tensor, "points 1"]
    test_inputs: Float[Tensor, "test 1"]
    test_targets: Float[Tensor, "test 1"]
    outer_inputs: Float[Tensor, "test 1"]
    outer_targets: Float[Tensor, "test 1"]
    fingerprint: str


def load_toy(noise_scale: float) -> ToyData:
    """The authors' twenty points. (Hernández-Lobato & Adams (2015) meant a *variance* of 9.)"""
    random = np.random.RandomState(_TRAIN_SEED)  # the authors' generator
    inputs = random.uniform(-INSIDE, INSIDE, _NUM_TRAIN)
    targets = inputs**3 + random.normal(0.0, noise_scale, _NUM_TRAIN)
    grid = np.linspace(-OUTSIDE, OUTSIDE, _NUM_GRID)
    fresh = np.random.default_rng(_TEST_SEED)
    inner = fresh.uniform(-INSIDE, INSIDE, _NUM_TEST)
    outer = fresh.uniform(INSIDE, OUTSIDE, _NUM_TEST) * fresh.choice([-1.0, 1.0], _NUM_TEST)
    noise = fresh.normal(0.0, noise_scale, (2, _NUM_TEST))
    return ToyData(
        noise_scale=noise_scale,
        train_inputs=_column(inputs),
        train_targets=_column(targets),
        grid=_column(grid),
        truth=_column(grid**3),
        test_inputs=_column(inner),
        test_targets=_column(inner**3 + noise[0]),
        outer_inputs=_column(outer),
        outer_targets=_column(outer**3 + noise[1]),
        fingerprint=fingerprint(_column(inputs), _column(targets)),
    )


def _column(values: np.ndarray) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).unsqueeze(1)
