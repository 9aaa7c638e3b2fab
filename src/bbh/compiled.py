"""Loops that are written in C++ while the program runs, and compiled once in a process."""

import ctypes
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from torch._C._functorch import peek_interpreter_stack

logger = logging.getLogger("bbh")

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
# All code begins with this: a loop calls ``in_parts`` with what there is to do for one part of its
# range. With OpenMP it shares torch's threads, which need two microseconds to start. Others, for
# compilers without it, need twenty. (As with torch itself, a process that was forked after these
# threads were used has none, and must not ask for more than one.)
_PARTS = """
#include <cstdint>
#ifndef _OPENMP
#include <thread>
#include <vector>
#endif

struct Part { int64_t first, last, number; };

template <typename Run>
static inline void in_parts(int64_t length, int64_t parts, int64_t threads, const Run& run) {
    const auto part = [=](int64_t p) {
        return Part{length * p / parts, length * (p + 1) / parts, p};
    };
    if (threads == 1) {
        for (int64_t p = 0; p < parts; p++) run(part(p));
        return;
    }
#ifdef _OPENMP
    #pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t p = 0; p < parts; p++) run(part(p));
#else
    const auto share = [&](int64_t t) {
        for (int64_t p = parts * t / threads; p < parts * (t + 1) / threads; p++) run(part(p));
    };
    std::vector<std::thread> others;
    for (int64_t t = 1; t < threads; t++) others.emplace_back(share, t);
    share(0);
    for (auto& other : others) other.join();
#endif
}
"""
# More parts than this would make the sums of all parts large.
_MOST_PARTS = 128
_SECONDS_TO_COMPILE = 120
# Otherwise square roots and choices would keep the compiler from computing with vectors.
_VECTORS = ("-fno-math-errno", "-fno-trapping-math")
_FLAGS = ("-O3", "-march=native", "-fPIC", "-pthread", *_VECTORS)


class Division(NamedTuple):
    """How the range of a loop is divided.

    Attributes:
        length: The length of the range.
        parts: The number of parts. It does not depend on the number of threads, so that sums over
            parts are the same to the last bit however many there are.
        threads: The number of threads that share the parts.
    """

    length: int
    parts: int
    threads: int


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


def divided(length: int, part: int) -> Division:
    """Divides the range of a loop among as many threads as torch has.

    Args:
        length: The number of places.
        part: The number of places that are worth a thread of their own.
    """
    parts = min(max(1, length // part), _MOST_PARTS)
    return Division(length, parts, min(torch.get_num_threads(), parts))


def _library(command: list[str], code: str) -> ctypes.CDLL:
    # Once loaded, the library needs no file.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        source = Path(folder, "loop.cpp")
        source.write_text(_PARTS + code)
        try:
            return _loaded(command, source, "-fopenmp")
        except (OSError, subprocess.SubprocessError):
            # The compiler has no OpenMP, or not the one that torch has loaded.
            return _loaded(command, source, "-fopenmp-simd")


def _loaded(command: list[str], source: Path, openmp: str) -> ctypes.CDLL:
    """Compiles a file and loads it.

    It is linked in a step of its own, which is not told of OpenMP: the library would otherwise
    bring an OpenMP of its own, with other threads than torch's.
    """
    unlinked, library = (source.with_name(f"loop{openmp}.{kind}") for kind in ("o", "so"))
    for arguments in (
        [*_FLAGS, openmp, "-c", str(source), "-o", str(unlinked)],
        ["-shared", "-pthread", str(unlinked), "-o", str(library)],
    ):
        subprocess.run(
            [*command, *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=_SECONDS_TO_COMPILE,
        )
    return ctypes.CDLL(str(library))
