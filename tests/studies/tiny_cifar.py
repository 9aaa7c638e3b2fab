"""CIFAR-10 in miniature: six files of a few images each, in both of the publisher's layouts."""

import pickle
import tarfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bbh_studies.datasets import cifar10
from bbh_studies.studies import find_study

PER_FILE = 40
FILES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5")
ALL_FILES = (*FILES, "test_batch")


def make_files() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Name → images [40, 3072] and labels, four of each class in random order.

    The first pixel tells the class, the second the file and the third the image, so that none can
    be mistaken for another; the others are stripes, narrower for higher classes, and noise.
    """
    random = np.random.default_rng(0)
    files = {}
    rows = np.arange(32)[:, None] / 32
    for number, name in enumerate(ALL_FILES):
        labels = random.permutation(np.arange(PER_FILE) % 10).astype(np.uint8)
        stripes = [np.sin(2 * np.pi * (1 + label) * rows).repeat(32, 1) for label in labels]
        images = 128 + 80 * np.stack(stripes).reshape(PER_FILE, 1, -1).repeat(3, 1)
        images = images.reshape(PER_FILE, -1) + random.integers(-40, 40, (PER_FILE, 3072))
        images[:, 0], images[:, 1], images[:, 2] = labels, number, np.arange(PER_FILE)
        files[name] = images.astype(np.uint8), labels
    return files


def write_binary(folder: Path) -> Path:
    """``cifar-10-batches-bin`` below the folder."""
    own = folder / "cifar-10-batches-bin"
    own.mkdir(parents=True)
    for name, (images, labels) in make_files().items():
        (own / f"{name}.bin").write_bytes(np.column_stack([labels, images]).tobytes())
    return own


def write_python(folder: Path, protocol: int = 2) -> Path:
    """``cifar-10-batches-py`` below the folder."""
    own = folder / "cifar-10-batches-py"
    own.mkdir(parents=True)
    for name, (images, labels) in make_files().items():
        batch = {
            b"batch_label": b"of something",
            b"labels": [int(label) for label in labels],
            b"data": images,
            b"filenames": [f"{label}.png".encode() for label in labels],
        }
        (own / name).write_bytes(pickle.dumps(batch, protocol))
    return own


def write_hmc(folder: Path) -> np.ndarray:
    """``hmc-cifar10/predictive.npz`` below the folder; returns its probabilities.

    They are 0.7 for a test image's class and the rest evenly for the others, but for the first ten
    images, where the next class has the 0.7.
    """
    own = folder / "hmc-cifar10"
    own.mkdir(parents=True)
    _, labels = make_files()["test_batch"]
    probabilities = np.full((PER_FILE, 10), 0.3 / 9, np.float32)
    shifts = np.arange(PER_FILE) < 10
    probabilities[np.arange(PER_FILE), (labels + shifts) % 10] = 0.7
    np.savez(own / "predictive.npz", probabilities=probabilities, labels=labels)
    return probabilities


def pack(own: Path, archive: str) -> Path:
    """The folder as the archive it would come from; the folder itself is left in place."""
    path = own.parent / archive
    with tarfile.open(path, "w:gz") as file:
        file.add(own, own.name)
    return path


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the loaders expect so few images."""
    monkeypatch.setattr(cifar10, "IMAGES_PER_FILE", PER_FILE)


def tiny_words(study: str, arguments: tuple[str, ...], settings: tuple[str, ...]) -> list[str]:
    """``--set`` options for those of the settings that the chosen rows of a study have."""
    rows = find_study(study).rows()
    chosen = [after for before, after in pairwise(arguments) if before == "--method"] or list(rows)
    names = {name for row in chosen for name in rows[row].names}
    words = [one for one in settings if one.partition("=")[0] in names]
    return [word for one in words for word in ("--set", one)]
