"""Loops that are written in C++ while the program runs, and compiled once in a process."""

import ctypes
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch
from torch._C._functorch import peek_interpreter_stack

logger = logging.getLogger("bbh")

T = TypeVar("T")

# The standard library's logarithm works on one number at a time. This one, of positive numbers, is
# that of the Cephes library: the exponent, and a polynomial of the mantissa. Loops begin with it.
LOGARITHM = """
#include <cmath>
#include <cstdint>
#include <cstring>

static inline float logarithm(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    // The bits of sqrt(1/2) are subtracted: the mantissa is between that and sqrt(2).
    const int32_t exponent = (bits - 0x3f3504f3) >> 23;
    bits -= exponent * (1 << 23);
    float y;
    std::memcpy(&y, &bits, 4);
    y -= 1.0f;
    float p = 7.0376836292e-2f;
    p = p * y - 1.1514610310e-1f;
    p = p * y + 1.1676998740e-1f;
    p = p * y - 1.2420140846e-1f;
    p = p * y + 1.4249322787e-1f;
    p = p * y - 1.6668057665e-1f;
    p = p * y + 2.0000714765e-1f;
    p = p * y - 2.4999993993e-1f;
    p = p * y + 3.3333331174e-1f;
    // x - x is NaN if x is NaN or infinite, else zero.
    return y + (p * y - 0.5f) * y * y + exponent * 0.69314718f + (x - x);
}
"""
_SECONDS_TO_COMPILE = 120
# Otherwise square roots and choices would keep the compiler from computing with vectors.
_VECTORS = ("-fno-math-errno", "-fno-trapping-math")
_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-fopenmp-simd", *_VECTORS)


def compiled(code: str, purpose: str) -> ctypes.CDLL | None:
    """Compiles C++ code; None if that is not possible, say because there is no compiler.

    ``TORCH_COMPILE_DISABLE=1`` in the environment switches it off.

    Args:
        code: The code, whose functions are declared ``extern "C"``.
        purpose: What it is for, for the log of a failure.
    """
    command = compiler()
    if command is None or os.environ.get("TORCH_COMPILE_DISABLE") == "1":
        return None
    try:
        return _library(command, code)
    except (OSError, subprocess.SubprocessError) as error:  # compilers fail in many ways
        reason = getattr(error, "stderr", None) or error
        logger.info("%s without a compiled loop: %s", purpose, reason)
        return None


def compiler() -> list[str] | None:
    """The command that starts a C++ compiler: what CXX names, else one of the usual two."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    commands = [chosen] if chosen else [["g++"], ["clang++"]]
    return next((command for command in commands if shutil.which(command[0])), None)


def is_traced() -> bool:
    """Whether tensors may be those of ``torch.compile`` or ``torch.func``, without values to read.

    Loops that read tensors at their addresses cannot take them.
    """
    if torch.compiler.is_compiling():
        return True
    # None outside of all transforms, whatever its annotation says.
    return bool(peek_interpreter_stack())


def in_parts(run: Callable[[int, int], T], length: int, part: int) -> list[T]:
    """Runs a compiled loop on parts of its range, in as many threads as torch has.

    The range is divided in the same way however many threads there are, so that sums over parts
    are the same to the last bit.

    Args:
        run: Runs the loop from a first place up to a last one.
        length: The number of places.
        part: The number of places that are worth a thread of their own.
    """
    parts = max(1, length // part)
    edges = [length * number // parts for number in range(parts + 1)]
    threads = min(torch.get_num_threads(), parts)
    if threads == 1:
        return list(map(run, edges[:-1], edges[1:]))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, edges[:-1], edges[1:]))


def _library(command: list[str], code: str) -> ctypes.CDLL:
    # Once loaded, the library needs no file.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        source, library = Path(folder, "loop.cpp"), Path(folder, "loop.so")
        source.write_text(code)
        subprocess.run(
            [*command, *_FLAGS, str(source), "-o", str(library)],
            check=True,
            capture_output=True,
            text=True,
            timeout=_SECONDS_TO_COMPILE,
        )
        return ctypes.CDLL(str(library))
