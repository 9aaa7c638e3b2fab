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
        sha256: SHA-256 of the file as published.
        mirrors: Addresses to try in turn.
    """

    folder: str
    name: str
    sha256: str
    mirrors: tuple[str, ...]

    suffix: ClassVar[str]

    @abstractmethod
    def places(self, folder: Path) -> list[Path]:
        """Paths below a folder to look at, packed or not; the first that exists is taken."""

    @abstractmethod
    def check(self, data_dir: Path | None) -> str:
        """Reads the file, and says in a few words what it holds and whether that is good."""

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
                    known_hash=f"sha256:{self.sha256}",
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
        content: SHA-256 of the unpacked file: copies may be packed differently, or not at all.
    """

    shape: tuple[int, ...]
    content: str

    suffix = ".gz"

    def places(self, folder: Path) -> list[Path]:
        """Only in the data set's own folder: MNIST and notMNIST name their files alike."""
        own = folder / self.folder
        return [own / self.name, own / f"{self.name}{self.suffix}"]

    def read(self, data_dir: Path | None) -> Tensor:
        """Reads the array."""
        return read_idx(self.find(data_dir), self.shape, self.content)

    def check(self, data_dir: Path | None) -> str:
        """Reads the array, which must be the publisher's, and tells its shape."""
        return f"{tuple(self.read(data_dir).shape)}, good"


_TRAIN_IMAGES, _TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_TEST_IMAGES, _TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
_IMAGES, _LABELS = (10_000, 28, 28), (10_000,)
MNIST = {
    name: IdxFile("mnist", name, sha256, _MNIST_MIRRORS, shape, content)
    for name, shape, sha256, content in (
        (
            _TRAIN_IMAGES,
            (60_000, 28, 28),
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        (
            _TRAIN_LABELS,
            (60_000,),
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        (
            _TEST_IMAGES,
            _IMAGES,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        (
            _TEST_LABELS,
            _LABELS,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    )
}
NOTMNIST = {
    name: IdxFile("notmnist", name, sha256, _NOTMNIST_MIRRORS, shape, content)
    for name, shape, sha256, content in (
        (
            _TEST_IMAGES,
            _IMAGES,
            "70ae9e06201f2827e5b0a3781a3169d735dd2efc69996b9eeaee7f10ed4044d7",
            "8e7f38ae95cc8f48e0986175ffc9137e5007ebcf3d8fdf6656c904eb9dab198b",
        ),
        (
            _TEST_LABELS,
            _LABELS,
            "1fa03836e01c862542f8eb83463bb951bebec6fcb3efa28dad748c6b38a9021b",
            "5f8e6012f2ce730700d8d05fca098bc47f71d25b890e4bec7ac5ebfd614a4001",
        ),
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
