"""CIFAR-10, and what Hamiltonian Monte Carlo predicts for its test images.

Izmailov et al. (2021) sampled the posterior of a network on CIFAR-10 with full-batch Hamiltonian
Monte Carlo (HMC) on 512 accelerators, and published its class probabilities for the test images
with the NeurIPS 2021 competition "Approximate Inference in Bayesian Deep Learning". They are read
from a folder that the user names: ``hmc-cifar10/predictive.npz`` with ``probabilities`` [10000, 10]
and ``labels`` [10000], in the order of the CIFAR-10 test file that lies beside it.
"""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bbh_studies.datasets.cifar10 import CIFAR10
from bbh_studies.datasets.idx import DataError
from bbh_studies.datasets.sources import cache_dir, data_dir_or_environment, fingerprint

NUM_CLASSES = 10
NUM_TRAIN = 50_000
# One training image in so many, the last ones of the files, is set aside to choose settings.
_VALIDATION_SHARE = 10
NUM_VALIDATION = NUM_TRAIN // _VALIDATION_SHARE
_FILE = Path("hmc-cifar10") / "predictive.npz"
_SOURCE = "https://github.com/izmailovpavel/neurips_bdl_starter_kit"
_ROUNDING = 1e-3  # of sums of ten probabilities in half precision
# Copies whose history is known, by the fingerprint of all pixels and labels.
_COPIES = {"9a2439f26cfa5425": "coded as JPEG once, at quality 75"}


@dataclass(frozen=True)
class Cifar10HmcData:
    """Images in [0, 1] and their labels, and HMC's class probabilities for the images to measure.

    Attributes:
        hmc: HMC's probabilities; None on the validation split, where they are not known.
        facts: What records say about the data.
    """

    train_images: Float[Tensor, "train 3 32 32"]
    train_labels: Int[Tensor, " train"]
    test_images: Float[Tensor, "test 3 32 32"]
    test_labels: Int[Tensor, " test"]
    hmc: Float[Tensor, "test 10"] | None
    facts: Mapping[str, str]

    def for_choosing(self) -> "Cifar10HmcData":
        """The data with which settings may be chosen, without test images and HMC's predictions.

        The last tenth of the training images takes the place of the test images.
        """
        first = len(self.train_images) - len(self.train_images) // _VALIDATION_SHARE
        known = {name: text for name, text in self.facts.items() if not name.startswith("HMC")}
        return Cifar10HmcData(
            train_images=self.train_images[:first],
            train_labels=self.train_labels[:first],
            test_images=self.train_images[first:],
            test_labels=self.train_labels[first:],
            hmc=None,
            facts=known | {"split": "validation"},
        )


def load_cifar10_hmc(data_dir: Path | None = None) -> Cifar10HmcData:
    """Reads CIFAR-10 and HMC's predictions.

    Args:
        data_dir: Folder with both; None for ``BBH_DATA`` or the cache.

    Raises:
        DataError: Names the file, what is wrong with it and what to do.
    """
    folder = data_dir_or_environment(data_dir)
    data = CIFAR10.read(folder)
    hmc = read_hmc((folder or cache_dir()) / _FILE, data.test_labels)
    pixels = fingerprint(data.train_images, data.train_labels, data.test_images, data.test_labels)
    facts = {"CIFAR-10": pixels, "HMC": fingerprint(hmc), "split": "test"}
    if not data.is_publishers:
        facts["pixels"] = f"not the publisher's: a copy {_COPIES.get(pixels, 'that was recoded')}"
        facts["HMC's pixels"] = "the publisher's"
    return Cifar10HmcData(
        train_images=data.train_images.float() / 255,
        train_labels=data.train_labels.long(),
        test_images=data.test_images.float() / 255,
        test_labels=data.test_labels.long(),
        hmc=hmc,
        facts=facts,
    )


def read_hmc(path: Path, labels: Tensor) -> Float[Tensor, "test 10"]:
    """HMC's class probabilities for test images with these labels.

    Raises:
        DataError: There is no such file, it holds something else, or it is in another order.
    """
    if not path.exists():
        raise DataError(
            f"there is no {path}. HMC's predictions are not fetched: take data/cifar10/probs.csv "
            f"from {_SOURCE}, bring its rows into the order of your CIFAR-10 test file, and write "
            f"them with numpy.savez as probabilities, and the labels as labels, to {_FILE} in the "
            "folder that --data or BBH_DATA names."
        )
    try:
        with np.load(path, allow_pickle=False) as stored:
            found: dict[str, Any] = {name: stored[name] for name in ("probabilities", "labels")}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as arrays of predictions ({error}).") from error
    probabilities = np.asarray(found["probabilities"])
    if probabilities.shape != (len(labels), NUM_CLASSES) or probabilities.dtype.kind != "f":
        raise DataError(
            f"{path} holds probabilities {list(probabilities.shape)} of {probabilities.dtype}, "
            f"where {len(labels):,} test images of {NUM_CLASSES} classes were expected."
        )
    probabilities = torch.from_numpy(probabilities.astype(np.float32))
    sums = (probabilities.sum(1) - 1).abs()
    if not bool((probabilities >= 0).all() and (sums <= _ROUNDING).all()):
        raise DataError(f"{path}: probabilities must be at least 0 and sum to 1 for every image.")
    # Not torch.equal, since the file's labels may have any shape or type.
    if not np.array_equal(found["labels"], labels.numpy()):
        raise DataError(
            f"{path} has other labels than the test images: its rows are in another order than "
            "the CIFAR-10 test file in the same folder."
        )
    return probabilities
