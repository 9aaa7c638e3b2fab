"""Where data files come from: the publishers' mirrors, or a folder that the user names."""

import hashlib
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from bbh_studies.datasets.download import resuming
from bbh_studies.datasets.idx import DataError, read_idx

_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_NOTMNIST_MIRRORS = ("https://raw.githubusercontent.com/davidflanagan/notMNIST-to-MNIST/master/",)


@dataclass(frozen=True)
class Source(ABC):
    """One data file, as its publisher offers it.

    Attributes:
        folder: The data set's own folder, below the data or cache folder.
        name: File name without its suffix.
        md5: Checksum of the file as published.
        mirrors: Addresses to try in turn.
    """

    folder: str
    name: str
    md5: str
    mirrors: tuple[str, ...]

    suffix: ClassVar[str]

    @abstractmethod
    def places(self, folder: Path) -> list[Path]:
        """Paths below a folder to look at, packed or not; the first that exists is taken."""

    @abstractmethod
    def check(self, data_dir: Path | None) -> str:
        """Reads the file, and says in a few words what it holds."""

    def find(self, data_dir: Path | None) -> Path:
        """The file in the user's folder, or in the cache.

        Raises:
            DataError: It is in neither; the message says how to get it.
        """
        folder = data_dir or cache_dir()
        for place in self.places(folder):
            if place.exists():
                return place
        raise DataError(
            f"{self.folder}/{self.name}{self.suffix}, packed or not, is not in {folder}. Run `bbh "
            f"data fetch {self.folder}` with a network, or copy the publisher's files into a "
            "folder and name it with --data or the environment variable BBH_DATA."
        )

    def fetch(self) -> Path:
        """Downloads the file into the cache unless it is there already.

        The file appears there only when it is complete and checked; an interrupted download goes
        on where it stopped.
        """
        try:
            import pooch
        except ImportError as error:
            raise ImportError(
                "files are fetched with pooch: pip install 'bayes-by-hypernet[studies]'."
            ) from error

        problems: list[str] = []
        folder, file_name = cache_dir() / self.folder, f"{self.name}{self.suffix}"
        for mirror in self.mirrors:
            try:
                fetched = pooch.retrieve(
                    url=f"{mirror}{file_name}",
                    known_hash=f"md5:{self.md5}",
                    fname=file_name,
                    path=folder,
                    downloader=resuming(folder / f"{file_name}.part"),
                )
            except Exception as error:  # requests, urllib3 and pooch each raise their own
                problems.append(f"{mirror}: {type(error).__name__}")
            else:
                return Path(fetched)
        raise DataError(
            f"{self.folder}/{file_name} could not be fetched ({'; '.join(problems)}). Without a "
            "network copy the publisher's files into a folder and name it with --data or BBH_DATA; "
            "`bbh demo` and `bbh run digits` need no download."
        )


@dataclass(frozen=True)
class IdxFile(Source):
    """A file in the idx format of MNIST.

    Attributes:
        shape: Shape of the array inside.
    """

    shape: tuple[int, ...]

    suffix = ".gz"

    def places(self, folder: Path) -> list[Path]:
        """Only in the data set's own folder: MNIST and notMNIST name their files alike."""
        own = folder / self.folder
        return [own / self.name, own / f"{self.name}{self.suffix}"]

    def read(self, data_dir: Path | None) -> Tensor:
        """Reads the array."""
        return read_idx(self.find(data_dir), self.shape)

    def check(self, data_dir: Path | None) -> str:
        """Reads the array and tells its shape."""
        return str(tuple(self.read(data_dir).shape))


_TRAIN_IMAGES, _TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_TEST_IMAGES, _TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
MNIST = {
    name: IdxFile("mnist", name, md5, _MNIST_MIRRORS, shape)
    for name, shape, md5 in (
        (_TRAIN_IMAGES, (60_000, 28, 28), "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        (_TRAIN_LABELS, (60_000,), "d53e105ee54ea40749a09fcbcd1e9432"),
        (_TEST_IMAGES, (10_000, 28, 28), "9fb629c4189551a2d022fa330f9573f3"),
        (_TEST_LABELS, (10_000,), "ec29112dd5afa0611ce80d1b7f02629c"),
    )
}
NOTMNIST = {
    name: IdxFile("notmnist", name, md5, _NOTMNIST_MIRRORS, shape)
    for name, shape, md5 in (
        (_TEST_IMAGES, (10_000, 28, 28), "2c87c839a4ef9b238846600eec8c35b7"),
        (_TEST_LABELS, (10_000,), "7ea9118cbafd0f6e3ee2ad771d782a01"),
    )
}


def cache_dir() -> Path:
    """Where fetched files are kept: ``BBH_CACHE``, or the system's cache folder."""
    if folder := os.environ.get("BBH_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "bbh"


def data_dir_or_environment(data_dir: Path | None) -> Path | None:
    """The folder of ``--data`` if given, else of ``BBH_DATA``, else None for the cache."""
    if data_dir is None and (folder := os.environ.get("BBH_DATA")):
        data_dir = Path(folder)
    if data_dir is not None and not data_dir.is_dir():
        raise DataError(f"the data folder {data_dir} does not exist.")
    return data_dir


def fingerprint(*arrays: Tensor) -> str:
    """Short SHA-256 of the data itself, for records."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.contiguous().numpy().data)
    return digest.hexdigest()[:16]
