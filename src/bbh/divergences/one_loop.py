"""Turns a computation on rows of numbers into one loop over their columns, with a C++ compiler.

The code is written here and not by ``torch.compile``, which takes far longer to compile.
"""

import ctypes
from collections.abc import Callable, Sequence

from jaxtyping import Float
from torch import Tensor

from bbh.compiled import LOGARITHM, compiled, divided
from bbh.divergences.recorder import ARITHMETIC, Computation, Language, record

# Columns that are worth a thread of their own, and are summed by themselves.
_COLUMNS_PER_PART = 2**12

# Minimum and maximum never return the same one of two numbers, so that sorting does not lose NaN.
_EXPRESSIONS = ARITHMETIC | {
    "minimum": "{0} < {1} ? {0} : {1}",
    "maximum": "{0} < {1} ? {1} : {0}",
    "gt": "{0} > {1} ? 1.0f : 0.0f",
    "lerp": "{2} != 0.0f ? {1} : {0}",  # weights must be zero or one
    "log": "logarithm({0})",
    "sqrt": "std::sqrt({0})",
    "zeros_like": "0.0f",
    "empty_like": "0.0f",
}
_LANGUAGE = Language(_EXPRESSIONS, number="{!r}f", entry="table{table}[{row} * width + i]")

_TEMPLATE = """
#include <numeric>
#include <vector>

static double run_part(const float* const* tables, float* __restrict__ results, int64_t width,
                       Part part) {
    %(tables)s
    double sum = 0;
    #pragma omp simd reduction(+ : sum)
    for (int64_t i = part.first; i < part.last; i++) {
        %(body)s
    }
    return sum;
}

extern "C" double run(const float* const* tables, float* results,
                      int64_t width, int64_t parts, int64_t threads) {
    std::vector<double> sums(parts);
    in_parts(width, parts, threads, [&](Part part) {
        sums[part.number] = run_part(tables, results, width, part);
    });
    return std::accumulate(sums.begin(), sums.end(), 0.0);
}
"""


class OneLoop:
    """A computation compiled into one loop.

    Args:
        run: The compiled function.
        num_results: The number of rows of results.
    """

    def __init__(self, run: Callable[..., float], num_results: int):
        self._run = run
        self._num_results = num_results

    def __call__(self, *tables: Float[Tensor, "_ D"]) -> tuple[Float[Tensor, ""], Tensor]:
        """The sum of all terms, and the rows of results; tables are in single precision.

        The sum does not depend on the number of threads.
        """
        tables = tuple(table.contiguous() for table in tables)
        width = tables[0].shape[1]
        results = tables[0].new_empty(self._num_results, width)
        places = (ctypes.c_void_p * len(tables))(*(table.data_ptr() for table in tables))
        total = self._run(places, results.data_ptr(), *divided(width, _COLUMNS_PER_PART))
        return results.new_tensor(total), results


def one_loop(computation: Computation, sizes: Sequence[int]) -> OneLoop | None:
    """Compiles a computation; None if that is not possible, see ``compiled``.

    Args:
        computation: Takes tables, which are lists of rows, and returns a row of terms to be summed
            and a list of rows.
        sizes: The number of rows of each table.
    """
    code, num_results = _written(computation, sizes)
    library = compiled(code, "nearest neighbours")
    if library is None:
        return None
    place, number = ctypes.c_void_p, ctypes.c_int64
    library.run.argtypes = [ctypes.POINTER(place), place, number, number, number]
    library.run.restype = ctypes.c_double
    return OneLoop(library.run, num_results)


def _written(computation: Computation, sizes: Sequence[int]) -> tuple[str, int]:
    """The computation in C++, and the number of rows that it returns."""
    steps, term, results = record(computation, sizes, _LANGUAGE)
    body = [f"const float {name} = {value};" for name, value in steps]
    body += [f"results[{row} * width + i] = {name};" for row, name in enumerate(results)]
    body.append(f"sum += {term};")
    pointers = [f"const float* __restrict__ table{i} = tables[{i}];" for i in range(len(sizes))]
    code = LOGARITHM + _TEMPLATE % {
        "tables": "\n    ".join(pointers),
        "body": "\n        ".join(body),
    }
    return code, len(results)
