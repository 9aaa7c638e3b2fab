"""CIFAR-10 as it is published: in the binary or the Python layout, in an archive or unpacked."""

import gzip
import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from bbh_studies.datasets.idx import DataError
from bbh_studies.datasets.pickled import PickleError, read_images_and_labels
from bbh_studies.datasets.sources import Source

IMAGES_PER_FILE = 10_000
_PIXELS = 3 * 32 * 32
_CLASSES = 10
_TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
_TEST_FILE = "test_batch"
# Twice the largest file of either layout: a longer file is something else.
_LARGEST_BYTES = 2 * 31_100_000
_LARGEST_ARCHIVE = 7 * _LARGEST_BYTES
_CHUNK = 2**20
# Mean and standard deviation of the training pixels by channel, in [0, 1]: known to eight digits
# from countless programs that normalise by them, and the same in every layout and order.
MEANS = (0.49139968, 0.48215841, 0.44653091)
SCALES = (0.24703223, 0.24348513, 0.26158784)
_DIGITS = 1e-7


@dataclass(frozen=True)
class Cifar10Data:
    """All images in bytes, red, green and blue planes, with their labels."""

    train_images: UInt8[Tensor, "train 3 32 32"]
    train_labels: UInt8[Tensor, " train"]
    test_images: UInt8[Tensor, "test 3 32 32"]
    test_labels: UInt8[Tensor, " test"]

    @property
    def is_publishers(self) -> bool:
        """Whether the training pixels have the publisher's moments, which no recoded copy has."""
        means, scales = moments(self.train_images)
        found = torch.cat([means, scales])
        return bool((found - found.new_tensor(MEANS + SCALES)).abs().max() < _DIGITS)


@dataclass(frozen=True)
class _Layout:
    """One of the two layouts in which CIFAR-10 is published.

    Attributes:
        archive: Name of the packed file.
        folder: Folder that the archive unpacks to.
        suffix: Suffix of the files in that folder.
        parse: Turns a file's content and name into images [B, 3072] and labels [B].
    """

    archive: str
    folder: str
    suffix: str
    parse: Callable[[bytes, str], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Cifar10(Source):
    """The binary archive is fetched; either layout is read, packed or not."""

    suffix = ".tar.gz"

    def places(self, folder: Path) -> list[Path]:
        """Unpacked files come before archives, in the folder itself and in the data set's own."""
        roots = (folder, folder / self.folder)
        names = (*(one.folder for one in _LAYOUTS), *(one.archive for one in _LAYOUTS))
        return [root / name for name in names for root in roots]

    def read(self, data_dir: Path | None) -> Cifar10Data:
        """Reads every image of the six files.

        Raises:
            DataError: Names the file, what is wrong with it and what to do.
        """
        path = self.find(data_dir)
        layout = next(one for one in _LAYOUTS if path.name in (one.folder, one.archive))
        names = [f"{file}{layout.suffix}" for file in (*_TRAIN_FILES, _TEST_FILE)]
        contents = _unpacked(path, names) if path.is_dir() else _packed(path, layout.folder, names)
        parsed = [layout.parse(contents[name], f"{path}/{name}") for name in names]
        images, labels = (torch.cat([part[i] for part in parsed[:-1]]) for i in (0, 1))
        test_images, test_labels = parsed[-1]
        return Cifar10Data(
            images.view(-1, 3, 32, 32), labels, test_images.view(-1, 3, 32, 32), test_labels
        )

    def check(self, data_dir: Path | None) -> str:
        """Reads all images, and says how many there are and whose pixels they have."""
        data = self.read(data_dir)
        whose = "the publisher's pixels, good"
        if not data.is_publishers:
            whose = "not the publisher's pixels: a recoded copy, or something else"
        return f"{len(data.train_images):,} and {len(data.test_images):,} images, {whose}"


def moments(images: UInt8[Tensor, "B 3 H W"]) -> tuple[Tensor, Tensor]:
    """Exact mean and standard deviation of every channel, in [0, 1]."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    # Counting how often each of 256 levels occurs needs no rounding and no copy in another type.
    shares = torch.stack([images[:, c].flatten().bincount(minlength=256) for c in range(3)])
    shares = shares / shares.sum(1, keepdim=True, dtype=torch.float64)
    means = shares @ levels
    return means, (shares @ levels.square() - means.square()).sqrt()


def _unpacked(folder: Path, names: list[str]) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for name in names:
        path = folder / name
        try:
            if path.stat().st_size > _LARGEST_BYTES:
                raise _damaged(str(path), f"is too long: {path.stat().st_size:,} bytes")
            contents[name] = path.read_bytes()
        except OSError as error:
            raise _damaged(str(path), f"cannot be read ({error})") from error
    return contents


class _Limited(io.RawIOBase):
    """A file of which only so many bytes are read: a packed one may unpack to anything.

    Args:
        file: The file.
        most: The number of bytes.
    """

    def __init__(self, file: gzip.GzipFile, most: int):
        super().__init__()
        self._file = file
        self._left = most

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        content = self._file.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise ValueError("it unpacks to far more than CIFAR-10 has")
        return content


def _packed(path: Path, folder: str, names: list[str]) -> dict[str, bytes]:
    """The wanted members, read in one pass and never written to disk."""
    contents: dict[str, bytes] = {}
    try:
        # Not tarfile's own "r|gz", which does not verify the checksum.
        with (
            gzip.open(path) as packed,
            _Limited(packed, _LARGEST_ARCHIVE) as file,
            tarfile.open(fileobj=file, mode="r|") as archive,
        ):
            for member in archive:
                place, _, name = member.name.removeprefix("./").rpartition("/")
                if place != folder or name not in names:
                    continue
                if member.size > _LARGEST_BYTES:
                    raise _damaged(f"{path}/{name}", f"is too long: {member.size:,} bytes")
                content = archive.extractfile(member)
                contents[name] = b"" if content is None else content.read()
            while file.read(_CHUNK):
                pass  # gzip verifies its checksum at the end, after the last member
    except DataError:
        raise
    except Exception as error:  # a damaged archive may raise any error
        raise _damaged(str(path), f"cannot be read ({error})") from error
    if missing := [name for name in names if name not in contents]:
        raise _damaged(str(path), f"lacks {', '.join(missing)}")
    return contents


def _parse_binary(content: bytes, where: str) -> tuple[Tensor, Tensor]:
    """Records of a label and 3,072 pixels."""
    expected = IMAGES_PER_FILE * (1 + _PIXELS)
    if len(content) != expected:
        raise _damaged(
            where, f"is truncated or too long: {len(content):,} bytes, expected {expected:,}"
        )
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(IMAGES_PER_FILE, -1)
    return records[:, 1:], _checked_labels(records[:, 0], where)


def _parse_python(content: bytes, where: str) -> tuple[Tensor, Tensor]:
    """A pickled dictionary; nothing in it is executed."""
    try:
        images, labels = read_images_and_labels(content, (IMAGES_PER_FILE, _PIXELS))
    except PickleError as error:
        raise _damaged(where, f"is no batch of CIFAR-10 ({error})") from error
    return images, _checked_labels(labels, where)


def _checked_labels(labels: Tensor, where: str) -> Tensor:
    if int(labels.max()) >= _CLASSES:
        raise _damaged(where, f"has a label {int(labels.max())} where there are {_CLASSES} classes")
    return labels


def _damaged(where: str, problem: str) -> DataError:
    return DataError(
        f"{where} {problem}. Delete it and run `bbh data fetch cifar10`, or copy the publisher's "
        "file there."
    )


_LAYOUTS = (
    _Layout("cifar-10-binary.tar.gz", "cifar-10-batches-bin", ".bin", _parse_binary),
    _Layout("cifar-10-python.tar.gz", "cifar-10-batches-py", "", _parse_python),
)
CIFAR10 = Cifar10(
    folder="cifar10",
    name="cifar-10-binary",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
)
