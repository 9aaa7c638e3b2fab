"""Loops in C++ for output layers on a CPU, which read a matrix [rows, columns] only once.

Libraries of matrix products are made for other shapes than a few vectors times a matrix of many
rows, and a gradient that is formed by one operation and read by the next goes through memory.
"""

import ctypes
import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.compiled import Division, compiled, divided

# The largest number of vectors, whose sums must fit in registers.
_MOST = 16
# Numbers of columns that are whole vectors of any processor.
_LANES = 16
_WIDEST = 512
# Entries of a matrix that are worth a thread of their own.
_ENTRIES_PER_PART = 2**16

_CODE = """
#include <algorithm>
#include <cmath>
#include <cstdint>

constexpr int S = %(samples)d, COLUMNS = %(columns)d;
#if defined(__AVX512F__)
constexpr int LANES = 16, SUMS = 24;
#elif defined(__AVX__)
constexpr int LANES = 8, SUMS = 12;
#else
constexpr int LANES = 4, SUMS = 12;
#endif
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
static inline Vector& at(float* place) { return *reinterpret_cast<Vector*>(place); }
static inline const Vector& at(const float* place) {
    return *reinterpret_cast<const Vector*>(place);
}

// outputs[s, r] = features[s] . matrix[r] + bias[r]. Each lane of a vector has a draw of its own,
// so that no sum goes across lanes.
static void rows_product_part(const float* __restrict__ features, const float* __restrict__ matrix,
                              const float* __restrict__ bias, float* __restrict__ outputs,
                              int64_t rows, Part part) {
    const int64_t first = part.first, last = part.last;
    constexpr int WIDTH = (S + LANES - 1) / LANES * LANES, ROWS = 8;
    float transposed[COLUMNS][WIDTH] = {};
    for (int s = 0; s < S; s++)
        for (int c = 0; c < COLUMNS; c++) transposed[c][s] = features[s * COLUMNS + c];
    for (int64_t r = first; r < last; r += ROWS) {
        // Of the last rows some are computed twice.
        const float* row[ROWS];
        for (int l = 0; l < ROWS; l++) row[l] = matrix + std::min(r + l, last - 1) * COLUMNS;
        float made[ROWS][WIDTH];
        for (int s = 0; s < WIDTH; s += LANES) {
            Vector sums[ROWS] = {};
            for (int c = 0; c < COLUMNS; c++)
                for (int l = 0; l < ROWS; l++) sums[l] += at(transposed[c] + s) * row[l][c];
            for (int l = 0; l < ROWS; l++) at(made[l] + s) = sums[l];
        }
        const int count = std::min<int64_t>(ROWS, last - r);
        for (int s = 0; s < S; s++)
            for (int l = 0; l < count; l++) outputs[s * rows + r + l] = made[l][s] + bias[r + l];
    }
}

extern "C" void rows_product(const float* features, const float* matrix, const float* bias,
                             float* outputs, int64_t rows, int64_t parts, int64_t threads) {
    in_parts(rows, parts, threads, [=](Part part) {
        rows_product_part(features, matrix, bias, outputs, rows, part);
    });
}

// outputs[s] = sum over rows of left[s, r] matrix[r]. Blocks of rows stay in the cache while groups
// of columns are summed in registers. If there is a place for them, also the sums of left over s.
static void columns_product_part(const float* __restrict__ left, const float* __restrict__ matrix,
                                 float* __restrict__ outputs, float* __restrict__ totals,
                                 int64_t rows, Part part) {
    const int64_t first = part.first, last = part.last;
    constexpr int GROUP = SUMS / S > 2 ? (COLUMNS / LANES %% 4 ? 1 : 4) :
                          SUMS / S > 1 ? (COLUMNS / LANES %% 2 ? 1 : 2) : 1;
    constexpr int64_t BLOCK = 8192 / COLUMNS > 16 ? 8192 / COLUMNS : 16;
    for (int i = 0; i < S * COLUMNS; i++) outputs[i] = 0;
    for (int64_t start = first; start < last; start += BLOCK) {
        const int64_t end = std::min(start + BLOCK, last);
        for (int c = 0; c < COLUMNS; c += GROUP * LANES) {
            Vector sums[S][GROUP] = {};
            for (int64_t r = start; r < end; r++) {
                const float* row = matrix + r * COLUMNS + c;
                for (int s = 0; s < S; s++)
                    for (int g = 0; g < GROUP; g++)
                        sums[s][g] += left[s * rows + r] * at(row + g * LANES);
            }
            for (int s = 0; s < S; s++)
                for (int g = 0; g < GROUP; g++)
                    at(outputs + s * COLUMNS + c + g * LANES) += sums[s][g];
        }
        for (int64_t r = start; totals != nullptr && r < end; r++) {
            float total = left[r];
            for (int s = 1; s < S; s++) total += left[s * rows + r];
            totals[r] = total;
        }
    }
}

// Every part has outputs of its own.
extern "C" void columns_product(const float* left, const float* matrix, float* outputs,
                                float* totals, int64_t rows, int64_t parts, int64_t threads) {
    in_parts(rows, parts, threads, [=](Part part) {
        columns_product_part(left, matrix, outputs + part.number * S * COLUMNS, totals, rows, part);
    });
}

// products[s, t] = left[s] . left[t], summed in registers for a few pairs of draws at a time.
static void gram_part(const float* __restrict__ left, float* __restrict__ products, int64_t rows,
                      Part part) {
    const int64_t first = part.first, last = part.last;
    constexpr int TILE = 4;
    constexpr int64_t BLOCK = 8192 / S / LANES * LANES;
    for (int i = 0; i < S * S; i++) products[i] = 0;
    for (int64_t start = first; start < last; start += BLOCK) {
        const int64_t end = std::min(start + BLOCK, last);
        const int64_t whole = end - (end - start) %% LANES;
        for (int s = 0; s < S; s += TILE)
            for (int t = s; t < S; t += TILE) {
                // Of the last draws some are computed twice.
                const float *one[TILE], *other[TILE];
                for (int i = 0; i < TILE; i++) {
                    one[i] = left + std::min(s + i, S - 1) * rows;
                    other[i] = left + std::min(t + i, S - 1) * rows;
                }
                Vector sums[TILE][TILE] = {};
                for (int64_t r = start; r < whole; r += LANES)
                    for (int i = 0; i < TILE; i++)
                        for (int j = 0; j < TILE; j++)
                            sums[i][j] += at(one[i] + r) * at(other[j] + r);
                for (int i = 0; i < TILE && s + i < S; i++)
                    for (int j = 0; j < TILE && t + j < S; j++) {
                        float sum = 0;
                        for (int l = 0; l < LANES; l++) sum += sums[i][j][l];
                        for (int64_t r = whole; r < end; r++) sum += one[i][r] * other[j][r];
                        products[(s + i) * S + t + j] += sum;
                    }
            }
    }
    for (int s = 0; s < S; s++)
        for (int t = 0; t < s; t++) products[s * S + t] = products[t * S + s];
}

// Every part has products of its own.
extern "C" void gram(const float* left, float* products,
                     int64_t rows, int64_t parts, int64_t threads) {
    in_parts(rows, parts, threads, [=](Part part) {
        gram_part(left, products + part.number * S * S, rows, part);
    });
}

struct Adam {
    float rate, mean_share, decay, square_share, root, eps, shrink, pull;
};

// One step of Adam with the gradient of row r, the sum of left[s, r] right[s], as torch writes it.
static void adam_part(float* __restrict__ weight, float* __restrict__ mean,
                      float* __restrict__ square, const float* __restrict__ left,
                      const float* __restrict__ right, const Adam a, int64_t rows, Part part) {
    const int64_t first = part.first, last = part.last;
    // Several rows at once: a loop over the few entries of a narrow row is not computed in vectors.
    constexpr int ROWS = COLUMNS < 128 ? 128 / COLUMNS : 1;
    for (int64_t r = first; r < last; r += ROWS) {
        const int count = std::min<int64_t>(ROWS, last - r);
        float gradient[ROWS * COLUMNS];
        for (int l = 0; l < count; l++) {
            Vector sums[COLUMNS / LANES] = {};
            for (int s = 0; s < S; s++)
                for (int c = 0; c < COLUMNS / LANES; c++)
                    sums[c] += left[s * rows + r + l] * at(right + s * COLUMNS + c * LANES);
            for (int c = 0; c < COLUMNS / LANES; c++)
                at(gradient + l * COLUMNS + c * LANES) = sums[c];
        }
        float* const weights = weight + r * COLUMNS;
        float* const means = mean + r * COLUMNS;
        float* const squares = square + r * COLUMNS;
        #pragma omp simd
        for (int i = 0; i < count * COLUMNS; i++) {
            const float w = weights[i] * a.shrink;
            const float g = gradient[i] + a.pull * w;
            const float m = means[i] + a.mean_share * (g - means[i]);
            const float v = a.decay * squares[i] + a.square_share * g * g;
            means[i] = m;
            squares[i] = v;
            weights[i] = w - a.rate * m / (std::sqrt(v) / a.root + a.eps);
        }
    }
}

extern "C" void adam(float* weight, float* mean, float* square, const float* left,
                     const float* right, const Adam* settings,
                     int64_t rows, int64_t parts, int64_t threads) {
    in_parts(rows, parts, threads, [=](Part part) {
        adam_part(weight, mean, square, left, right, *settings, rows, part);
    });
}
"""


class AdamNumbers(NamedTuple):
    """The numbers of one step of Adam.

    Attributes:
        rate: Learning rate over the first moment's bias correction.
        mean_share: 1 − β₁.
        decay: β₂.
        square_share: 1 − β₂.
        root: Root of the second moment's bias correction.
        eps: ε.
        shrink: What weights are multiplied with first: decoupled weight decay.
        pull: What of the weights is added to their gradient: ordinary weight decay.
    """

    rate: float
    mean_share: float
    decay: float
    square_share: float
    root: float
    eps: float
    shrink: float
    pull: float


@dataclass(frozen=True)
class Loops:
    """The compiled loops for S vectors and a number of columns.

    Attributes:
        library: The library that holds them.
    """

    library: Any

    def rows_product(
        self,
        features: Float[Tensor, "S columns"],
        matrix: Float[Tensor, "rows columns"],
        bias: Float[Tensor, " rows"] | None = None,
    ) -> Float[Tensor, "S rows"]:
        """features @ matrixᵀ + bias."""
        rows = len(matrix)
        features = features.contiguous()
        bias = features.new_zeros(rows) if bias is None else bias.to(features).contiguous()
        outputs = features.new_empty(len(features), rows)
        places = [one.data_ptr() for one in (features, matrix, bias, outputs)]
        self.library.rows_product(*places, *_division(matrix))
        return outputs

    def columns_product(
        self, left: Float[Tensor, "S rows"], matrix: Float[Tensor, "rows columns"]
    ) -> Float[Tensor, "S columns"]:
        """left @ matrix; the sum does not depend on the number of threads."""
        return self._columns_product(left.contiguous(), matrix, None)

    def columns_product_and_totals(
        self, left: Float[Tensor, "S rows"], matrix: Float[Tensor, "rows columns"]
    ) -> tuple[Float[Tensor, "S columns"], Float[Tensor, " rows"]]:
        """left @ matrix, and the sum of left over its first axis."""
        totals = left.new_empty(left.shape[1])
        return self._columns_product(left.contiguous(), matrix, totals), totals

    def _columns_product(self, left: Tensor, matrix: Tensor, totals: Tensor | None) -> Tensor:
        division = _division(matrix)
        sums = left.new_empty(division.parts, len(left), matrix.shape[1])
        place = None if totals is None else totals.data_ptr()
        places = [left.data_ptr(), matrix.data_ptr(), sums.data_ptr(), place]
        self.library.columns_product(*places, *division)
        return sums.sum(0)

    def gram(
        self, left: Float[Tensor, "S rows"], matrix: Float[Tensor, "rows columns"]
    ) -> Float[Tensor, "S S"]:
        """left @ leftᵀ, for the left factor of a gradient of this matrix."""
        left = left.contiguous()
        division = _division(matrix)
        products = left.new_empty(division.parts, len(left), len(left))
        self.library.gram(left.data_ptr(), products.data_ptr(), *division)
        return products.sum(0)

    def adam_(
        self,
        weight: Float[Tensor, "rows columns"],
        exp_avg: Float[Tensor, "rows columns"],
        exp_avg_sq: Float[Tensor, "rows columns"],
        left: Float[Tensor, "S rows"],
        right: Float[Tensor, "S columns"],
        numbers: AdamNumbers,
    ) -> None:
        """One step of Adam in place, with the gradient leftᵀ right."""
        tensors = (weight, exp_avg, exp_avg_sq, left.contiguous(), right.contiguous())
        places = [one.data_ptr() for one in tensors]
        settings = (ctypes.c_float * len(numbers))(*numbers)
        self.library.adam(*places, settings, *_division(weight))


def _division(matrix: Tensor) -> Division:
    return divided(len(matrix), max(1, _ENTRIES_PER_PART // matrix.shape[1]))


def loops_for(vectors: Tensor, *matrices: Tensor) -> Loops | None:
    """The loops for these vectors and matrices of one shape; None if there are none.

    Args:
        vectors: The S vectors, one in each row.
        matrices: The matrix, and others that a loop reads or writes beside it.
    """
    columns = matrices[0].shape[1]
    suitable = (
        len(vectors) <= _MOST
        and columns % _LANES == 0
        and columns <= _WIDEST
        and all(one.device.type == "cpu" for one in (vectors, *matrices))
        and all(one.dtype == torch.float32 for one in (vectors, *matrices))
        and all(one.is_contiguous() for one in matrices)
    )
    return _loops(len(vectors), columns) if suitable else None


@functools.cache
def _loops(samples: int, columns: int) -> Loops | None:
    code = _CODE % {"samples": samples, "columns": columns}
    library = compiled(code, "output layers of generators")
    if library is None:
        return None
    place, number = ctypes.c_void_p, ctypes.c_int64
    library.rows_product.argtypes = [*[place] * 4, *[number] * 3]
    library.columns_product.argtypes = [*[place] * 4, *[number] * 3]
    library.gram.argtypes = [*[place] * 2, *[number] * 3]
    library.adam.argtypes = [*[place] * 6, *[number] * 3]
    for loop in (library.rows_product, library.columns_product, library.gram, library.adam):
        loop.restype = None
    return Loops(library)
