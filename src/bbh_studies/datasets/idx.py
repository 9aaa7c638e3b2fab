"""The idx format of MNIST: a magic number, the dimensions, then bytes."""

import gzip
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor


class DataError(ValueError):
    """A data file is missing, damaged or not what its name says."""


def read_idx(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Unsigned bytes of the given shape from an idx file, gzipped or not.

    Raises:
        DataError: Names the file, what is wrong with it and what to do.
    """
    remedy = "Delete it and run `bbh data fetch`, or copy the publisher's file there."
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}). {remedy}") from error
    header = 4 + 4 * len(shape)
    magic = bytes([0, 0, 8, len(shape)])
    if content[:4] != magic:
        raise DataError(
            f"{path} starts with {content[:4].hex() or 'nothing'}; an idx file of bytes in "
            f"{len(shape)} dimensions starts with {magic.hex()}. {remedy}"
        )
    found = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4))
    if len(content) < header or found != shape:
        raise DataError(f"{path} holds an array of shape {found}, expected {shape}. {remedy}")
    if len(content) != header + math.prod(shape):
        raise DataError(
            f"{path} is truncated or too long: {len(content):,} bytes unpacked, expected "
            f"{header + math.prod(shape):,}. {remedy}"
        )
    return torch.frombuffer(bytearray(content[header:]), dtype=torch.uint8).view(shape)
