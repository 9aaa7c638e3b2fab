"""The idx format of MNIST: a magic number, the dimensions, then bytes."""

import gzip
import hashlib
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor


class DataError(ValueError):
    """A data file is missing, damaged or not what its name says."""


def read_idx(path: Path, shape: tuple[int, ...], sha256: str = "") -> Tensor:
    """Unsigned bytes of the given shape from an idx file, gzipped or not.

    Args:
        path: The file.
        shape: Shape of the array inside.
        sha256: Checksum of the unpacked file; empty accepts any content of that shape.

    Raises:
        DataError: Names the file, what is wrong with it and what to do.
    """
    remedy = "Delete it and run `bbh data fetch`, or copy the publisher's file there."
    header = 4 + 4 * len(shape)
    expected = header + math.prod(shape)
    try:
        content = _unpacked(path, expected + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}). {remedy}") from error
    magic = bytes([0, 0, 8, len(shape)])
    if content[:4] != magic:
        raise DataError(
            f"{path} starts with {content[:4].hex() or 'nothing'}; an idx file of bytes in "
            f"{len(shape)} dimensions starts with {magic.hex()}. {remedy}"
        )
    found = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4))
    if len(content) < header or found != shape:
        raise DataError(f"{path} holds an array of shape {found}, expected {shape}. {remedy}")
    if len(content) != expected:
        number = f"{len(content):,}" if len(content) < expected else f"more than {expected:,}"
        raise DataError(
            f"{path} is truncated or too long: {number} bytes unpacked, expected {expected:,}. "
            f"{remedy}"
        )
    if sha256 and hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(f"{path} is not the publisher's: its checksum differs. {remedy}")
    return torch.frombuffer(bytearray(content[header:]), dtype=torch.uint8).view(shape)


def _unpacked(path: Path, most: int) -> bytes:
    """The first bytes of a file, unpacked if it is packed: no more than needed, however long."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        return gzip.GzipFile(fileobj=file).read(most) if packed else file.read(most)
