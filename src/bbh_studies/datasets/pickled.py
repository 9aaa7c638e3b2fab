"""CIFAR-10's Python files: NumPy arrays in pickles, read without running what a pickle asks for.

A pickle is a program, which may call any function. Here the few names that NumPy's pickles call are
replaced by inert objects that only keep their arguments, and any other name is refused; NumPy
itself never sees the content.
"""

import io
import pickle
from typing import Any

import numpy as np
import torch
from torch import Tensor


class PickleError(ValueError):
    """A pickle does not hold what was asked for."""


class _Array:
    """Stands in for ``numpy.ndarray``: keeps the state from which one would be made."""

    shape: object = None
    kind: object = None
    raw: object = None
    columns_first: object = False

    def __setstate__(self, state: Any) -> None:
        _, self.shape, kind, self.columns_first, self.raw = state
        self.kind = getattr(kind, "name", None)

    @property
    def is_bytes(self) -> bool:
        """Whether the array holds unsigned bytes, as Python 2 or 3 names them."""
        return self.kind in ("u1", b"u1") and isinstance(self.raw, bytes)


class _Kind:
    """Stands in for ``numpy.dtype``: keeps its name."""

    def __init__(self, name: object, *_: object):
        self.name = name

    def __setstate__(self, state: object) -> None:
        del state  # byte order and alignment, which do not matter for bytes


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _encode(text: str, _: object) -> bytes:
    return text.encode("latin1")  # Python 3 writes bytes so in pickles for Python 2


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encode,
}


# The reader in Python, not the one in C, which allocates all memory if an index is damaged.
class _Reader(pickle._Unpickler):  # pyright: ignore[reportPrivateUsage]
    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for a known name; any other name is an error."""
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _KNOWN[module, name]


def read_images_and_labels(content: bytes, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Reads ``data``, an array of bytes of the given shape, and ``labels``, a number per row.

    Raises:
        PickleError: Says what is there instead.
    """
    try:
        batch: Any = _Reader(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise any exception
        raise PickleError(f"{type(error).__name__}: {error}") from error
    if not isinstance(batch, dict):
        raise PickleError("it holds no dictionary")
    # Keys are bytes where Python 2 wrote them.
    images, labels = (batch.get(name.encode(), batch.get(name)) for name in ("data", "labels"))
    if not (isinstance(images, _Array) and images.is_bytes and images.shape == shape):
        raise PickleError(f"its data are no bytes of shape {shape}")
    raw = bytearray(images.raw)  # pyright: ignore[reportArgumentType]
    if len(raw) != shape[0] * shape[1]:
        raise PickleError(f"its data are {len(raw):,} bytes, not {shape[0] * shape[1]:,}")
    if not isinstance(labels, list) or len(labels) != shape[0]:
        raise PickleError(f"its labels are no list of {shape[0]:,}")
    if not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise PickleError("its labels are no small numbers")
    pixels = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if images.columns_first else "C")
    return torch.from_numpy(np.ascontiguousarray(pixels)), torch.tensor(labels, dtype=torch.uint8)
