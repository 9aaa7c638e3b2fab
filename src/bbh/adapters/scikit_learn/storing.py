"""A posterior as bytes, for pickles: in the library's own file format, which holds no code."""

import functools
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from bbh.methods import registered
from bbh.posterior import Posterior
from bbh.storage import StorageError, load, save

Method = Any


def as_method(method: object) -> Method:
    """The function that makes a posterior, from itself or from its name in ``bbh.methods``."""
    if callable(method):
        return method
    if isinstance(method, str) and method in registered():
        return registered()[method]
    raise ValueError(
        f"method={method!r}: pass a function of bbh.methods, or the name of one: "
        f"{', '.join(registered())}."
    )


def to_bytes(posterior: Posterior[Any]) -> bytes:
    """What ``bbh.save`` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "posterior.safetensors"
        save(posterior, path)
        return path.read_bytes()


def from_bytes(stored: bytes, network: nn.Module, method: object) -> Posterior[Any]:
    """The posterior that ``to_bytes`` stored.

    Args:
        stored: The bytes.
        network: A network of the same structure.
        method: What the posterior was made with. Arguments that ``functools.partial`` binds are
            passed on, since they may be code or of a class of the user's, which no file holds.
    """
    bound = method.keywords if isinstance(method, functools.partial) else {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "posterior.safetensors"
        path.write_bytes(stored)
        try:
            return load(path, network, **bound)
        except StorageError as error:
            # The name of the file means nothing to anybody.
            message = str(error).replace(str(path), "the posterior in the pickle")
            raise StorageError(message) from error
