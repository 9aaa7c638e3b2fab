"""Reads the arrays beside a record, from which figures are drawn."""

import io
import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from bbh.files import sha256
from bbh_studies.record import ARRAYS_NAME, RecordError

# The largest array that is read. Those of the largest study have a hundredth of it.
_LARGEST_BYTES = 2**30


def read_arrays(folder: Path, expected: str = "") -> dict[str, np.ndarray]:
    """The arrays that were stored beside a record; empty if there are none.

    Args:
        folder: The folder of the record.
        expected: SHA-256 of the file, as the record has it; empty if it is not known.

    Raises:
        RecordError: The file is damaged, or not the one that the record was written with.
    """
    path = folder / ARRAYS_NAME
    if not path.exists():
        return {}
    if expected and sha256(path) != expected:
        raise RecordError(f"{path} is not what its record was written with; run again.")
    try:
        with zipfile.ZipFile(path) as archive:
            return {
                member.filename.removesuffix(".npy"): _read(archive, member)
                for member in archive.infolist()
            }
    except Exception as error:  # a damaged archive may raise any error
        raise RecordError(f"{path} cannot be read ({error}); run again.") from error


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """One array, whose declared sizes are checked before memory is taken for them."""
    if member.file_size > _LARGEST_BYTES:
        raise ValueError(f"{member.filename} would have {member.file_size:,} bytes")
    content = io.BytesIO(archive.read(member))
    if npy.read_magic(content) != (1, 0):
        raise ValueError(f"{member.filename} is no array that NumPy wrote here")
    shape, _, kind = npy.read_array_header_1_0(content)
    declared = int(np.prod(shape, dtype=object)) * kind.itemsize
    if kind.kind not in "biuf" or declared != len(content.getbuffer()) - content.tell():
        raise ValueError(f"{member.filename} declares {declared:,} bytes and has others")
    content.seek(0)
    return npy.read_array(content, allow_pickle=False)
