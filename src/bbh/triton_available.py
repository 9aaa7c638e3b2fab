"""Checks whether Triton kernels can be used."""

import functools
import importlib.util


@functools.cache
def triton_available() -> bool:
    """Whether Triton is installed: it comes with torch's CUDA builds on Linux only."""
    return importlib.util.find_spec("triton") is not None
