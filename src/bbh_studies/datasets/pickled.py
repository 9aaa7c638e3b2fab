"""CIFAR-10's Python files: NumPy arrays in pickles, read without running what a pickle asks for.

A pickle is a program. Here the few names that NumPy's pickles call stand for inert objects that
only keep their arguments, and any other name is refused; NumPy itself never sees the content.
"""

import io
import pickle
from typing import Any

import numpy as np
import torch
from torch import Tensor


class PickleError(ValueError):
    """A pickle holds something else than was asked for."""


class _Array:
    """In place of ``numpy.ndarray``: keeps the state that would make one."""

    shape: object = None
    kind: object = None
    raw: object = None
    columns_first: object = False

    def __setstate__(self, state: Any) -> None:
        _, self.shape, kind, self.columns_first, self.raw = state
        self.kind = getattr(kind, "name", None)

    @property
    def is_bytes(self) -> bool:
        """Unsigned bytes, as Python 2 or 3 names them."""
        return self.kind in ("u1", b"u1") and isinstance(self.raw, bytes)


class _Kind:
    """In place of ``numpy.dtype``: keeps its name."""

    def __init__(self, name: object, *_: object):
        self.name = name

    def __setstate__(self, state: object) -> None:
        del state  # byte order and alignment, which a byte has not


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _encode(text: str, _: object) -> bytes:
    return text.encode("latin1")  # how Python 3 writes bytes where Python 2 shall read them


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encode,
}


# Python's own reader, not the one in C: a damaged index there allocates until memory is full.
class _Reader(pickle._Unpickler):  # pyright: ignore[reportPrivateUsage]
    def find_class(self, module: str, name: str) -> Any:
        """A stand-in, or nothing at all."""
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _KNOWN[module, name]


def read_images_and_labels(content: bytes, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """``data``, an array of bytes of the given shape, and ``labels``, a number for each row.

    Raises:
        PickleError: Says what is there instead.
    """
    try:
        batch: Any = _Reader(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # damaged pickles raise whatever their remains lead to
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
