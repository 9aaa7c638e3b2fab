"""Nearest-neighbour terms of every weight and their gradient, as a Triton kernel.

The operations on rows are recorded and become the kernel. The draws of a weight stay in registers:
the kernel reads the values once and writes the gradient once, while sorting and autograd pass over
memory many times.
"""

import functools
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from bbh.divergences.neighbours_rows import terms
from bbh.divergences.recorder import ARITHMETIC, Language, record

# Columns per program.
_COLUMNS = 128
# Triton reads kernels from files, which are deleted when Python ends.
_FOLDER = tempfile.TemporaryDirectory(prefix="bbh-")

# Minimum and maximum never return the same one of two numbers, so that sorting does not lose NaN.
_EXPRESSIONS = ARITHMETIC | {
    "minimum": "tl.where({0} < {1}, {0}, {1})",
    "maximum": "tl.where({0} < {1}, {1}, {0})",
    "gt": "({0} > {1}).to(tl.float32)",
    "lerp": "tl.where({2} != 0.0, {1}, {0})",  # weights must be zero or one
    "log": "tl.log({0})",
    "sqrt": "tl.sqrt({0})",
    "zeros_like": "tl.zeros_like({0})",
    "empty_like": "tl.zeros_like({0})",
}
_LANGUAGE = Language(
    _EXPRESSIONS,
    number="{!r}",
    entry="tl.load(table{table} + {row} * stride + column, inside, other=0.0)",
)
# 64 bits: draws of large networks have more than 2³¹ entries.
_TEMPLATE = """
import triton
import triton.language as tl

@triton.jit
def kernel(%(tables)s, sums, results, width, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    stride = tl.zeros([COLUMNS], tl.int64) + width
    %(body)s
    tl.store(sums + tl.program_id(0), tl.sum(tl.where(inside, %(term)s, 0.0), axis=0))
"""


def log_distances(
    values: Tensor, reference: Tensor | None, floor: float, neighbours: int
) -> tuple[Tensor, Tensor]:
    """Σ log ν, or Σ log(ρ/ν) with a reference, over all draws and weights, and its gradient.

    The arguments are those of ``sum_log_distances``.
    """
    tables = [values] if reference is None else [values, reference.contiguous()]
    width = values.shape[1]
    programs = triton.cdiv(width, _COLUMNS)
    sums = values.new_empty(programs)
    gradient = torch.empty_like(values)
    kernel = _kernel(tuple(map(len, tables)), floor, neighbours)
    kernel[(programs,)](*tables, sums, gradient, width, COLUMNS=_COLUMNS)
    return sums.sum(), gradient


@functools.cache
def _kernel(sizes: tuple[int, ...], floor: float, neighbours: int) -> Any:
    """The kernel for tables with these numbers of rows."""
    computation = functools.partial(terms, floor=floor, neighbours=neighbours)
    steps, term, results = record(computation, sizes, _LANGUAGE)
    body = [f"{name} = {value}" for name, value in steps]
    body += [
        f"tl.store(results + {row} * stride + column, {name}, inside)"
        for row, name in enumerate(results)
    ]
    tables = ", ".join(f"table{table}" for table in range(len(sizes)))
    code = _TEMPLATE % {"tables": tables, "body": "\n    ".join(body), "term": term}
    path = Path(_FOLDER.name, f"neighbours_{_kernel.cache_info().misses}.py")
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel
