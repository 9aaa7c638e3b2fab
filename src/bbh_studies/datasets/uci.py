"""Nine regression sets of the UCI repository with their canonical splits, read from a folder.

The folder is laid out as in the public repositories of Hernández-Lobato & Adams (2015) and Gal &
Ghahramani (2016), which defined the splits: ``uci/NAME/data.txt`` with one example per line, the
columns of inputs and target in ``index_features.txt`` and ``index_target.txt``, and the rows of
split K in ``index_train_K.txt`` and ``index_test_K.txt``. They are not fetched: the user names the
folder.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bbh_studies.datasets.idx import DataError
from bbh_studies.datasets.sources import cache_dir, data_dir_or_environment, fingerprint

# Share of a split's training part that is held out to choose settings.
VALIDATION_SHARE = 0.2


@dataclass(frozen=True)
class UciSet:
    """What is known about a set without reading it.

    Attributes:
        folder: Its folder below ``uci``.
        num_inputs: Columns of inputs.
        num_splits: Splits that the study uses; where there are many examples, fewer are enough.
        hidden: Hidden units of the network that is usual for this set.
        steps: Training steps of the study: forty passes over the data in batches of 100, but at
            least 2,500, since small sets need steps rather than passes, and at most 5,000.
    """

    folder: str
    num_inputs: int
    num_splits: int = 20
    hidden: int = 50
    steps: int = 2500


UCI: dict[str, UciSet] = {
    "boston": UciSet("bostonHousing", 13),
    "concrete": UciSet("concrete", 8),
    "energy": UciSet("energy", 8),
    "kin8nm": UciSet("kin8nm", 8, num_splits=5, steps=3000),
    "naval": UciSet("naval-propulsion-plant", 16, num_splits=5, steps=4300),
    "power": UciSet("power-plant", 4, num_splits=5, steps=3450),
    "protein": UciSet("protein-tertiary-structure", 9, num_splits=5, hidden=100, steps=5000),
    "wine": UciSet("wine-quality-red", 11),
    "yacht": UciSet("yacht", 6),
}


@dataclass(frozen=True)
class UciData:
    """One split of a set: inputs standardised by the training part, targets in their own units.

    Attributes:
        fingerprint: Short checksum of the whole set, for records.
    """

    train_inputs: Float[Tensor, "train features"]
    train_targets: Float[Tensor, "train 1"]
    test_inputs: Float[Tensor, "test features"]
    test_targets: Float[Tensor, "test 1"]
    fingerprint: str


def load_uci(name: str, split: int, data_dir: Path | None, *, validation: bool = False) -> UciData:
    """Reads one split.

    Args:
        name: Name of the set, a key of ``UCI``.
        split: Number of the split, from 0.
        data_dir: Folder that has the folder ``uci``; None for ``BBH_DATA`` or the cache.
        validation: Hold a fifth of the training part out, at random, and measure on it instead: no
            test example is looked at.
    """
    folder = (data_dir_or_environment(data_dir) or cache_dir()) / "uci" / UCI[name].folder
    if not (folder / "data.txt").exists():
        raise DataError(
            f"there is no {folder / 'data.txt'}. The UCI sets are not fetched: copy "
            f"uci/{UCI[name].folder}/{{data,index_features,index_target,index_train_K,index_test_K}}"
            ".txt, as published with the splits, into a folder and name it with --data or BBH_DATA."
        )
    if not (folder / f"index_train_{split}.txt").exists():
        raise DataError(f"{folder} has no split {split}: the seed of a run is its split, from 0.")
    inputs, targets = _read(folder)
    train, test = (
        _indices(folder / f"index_{part}_{split}.txt", len(inputs)) for part in ("train", "test")
    )
    if validation:
        order = np.random.default_rng(split).permutation(train)
        held_out = round(VALIDATION_SHARE * len(order))
        train, test = order[held_out:], order[:held_out]
    mean, std = inputs[train].mean(0), inputs[train].std(0)
    inputs = (inputs - mean) / np.where(std > 0, std, 1.0)  # some columns have one value only
    return UciData(
        train_inputs=_tensor(inputs[train]),
        train_targets=_tensor(targets[train]),
        test_inputs=_tensor(inputs[test]),
        test_targets=_tensor(targets[test]),
        fingerprint=fingerprint(torch.from_numpy(targets)),
    )


@cache
def _read(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of all examples, in double precision."""
    table = _numbers(folder / "data.txt", ndmin=2)
    inputs, target = (
        table[:, _indices(folder / f"index_{part}.txt", table.shape[1])]
        for part in ("features", "target")
    )
    return inputs, target


def _indices(path: Path, number: int) -> np.ndarray:
    """Which of ``number`` rows or columns a file names."""
    # Some files have whole numbers written as 3.0e+00.
    indices = _numbers(path, ndmin=1).astype(int)
    if indices.min() < 0 or indices.max() >= number:
        raise DataError(f"{path} names a row or column that data.txt does not have.")
    return indices


def _numbers(path: Path, *, ndmin: Literal[1, 2]) -> np.ndarray:
    try:
        found = np.loadtxt(path, ndmin=ndmin)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as numbers ({error}).") from error
    if not found.size or not np.isfinite(found).all():
        raise DataError(f"{path} has no numbers, or some that are not finite.")
    return found


def _tensor(values: np.ndarray) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)
