"""Whether kernels can be compiled here."""

import functools
import importlib.util


@functools.cache
def triton_available() -> bool:
    """Triton comes with torch's CUDA builds on Linux, and not with others."""
    return importlib.util.find_spec("triton") is not None
