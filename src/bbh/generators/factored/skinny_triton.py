# pyright: basic, reportInvalidTypeForm=false, reportMissingImports=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
"""Triton kernels for products of a few vectors with a large matrix, which is read only once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows per program of the first product. A program is one warp, so that sums along a row stay within
# it, and four rows at a time are enough to keep it busy.
_ROWS = 4
# The second product is a loop of small tensor-core products of this size; the next piece is loaded
# while the current one is multiplied.
_DEPTH = 64
_WIDTH = 128
# The number of programs for the second product: enough to use the memory speed of a large GPU.
_PROGRAMS = 528
# The smallest number of rows in a tensor-core product.
_FEWEST = tl.constexpr(16)


@triton.jit
def _forward(
    features,
    matrix,
    outputs,
    rows,
    columns,
    SAMPLES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    in_columns = column < columns
    inside = (row < rows)[:, None] & in_columns[None, :]
    # 64 bits: the largest matrices have more than 2³¹ elements.
    place = row.to(tl.int64)[:, None] * columns + column[None, :]
    w = tl.load(matrix + place, inside, other=0.0)
    for s in tl.static_range(SAMPLES):
        h = tl.load(features + s * columns + column, in_columns, other=0.0)
        tl.store(outputs + s * rows + row, tl.sum(w * h[None, :], axis=1), row < rows)


@triton.jit
def _backward(
    left,
    matrix,
    partial,
    rows,
    columns,
    rows_per_program,
    SAMPLES: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * rows_per_program
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    in_columns = column < columns
    s = tl.arange(0, _FEWEST)
    in_samples = s < SAMPLES
    total = tl.zeros((_FEWEST, WIDTH), tl.float32)
    for start in range(0, rows_per_program, DEPTH):
        row = first + start + tl.arange(0, DEPTH)
        # The last program may have fewer rows.
        in_rows = row < rows
        inside = in_rows[:, None] & in_columns[None, :]
        w = tl.load(matrix + row[:, None] * columns + column[None, :], inside, other=0.0)
        wanted = in_samples[:, None] & in_rows[None, :]
        g = tl.load(left + s[:, None] * rows + row[None, :], wanted, other=0.0)
        # tf32x3 splits each factor into a sum of rounded parts, so that tensor cores reach the
        # accuracy of single precision.
        total = tl.dot(g, w, total, input_precision="tf32x3")
    place = (tl.program_id(0) * SAMPLES + s)[:, None] * columns + column[None, :]
    tl.store(partial + place, total, in_samples[:, None] & in_columns[None, :])


def rows_product(features: Tensor, matrix: Tensor) -> Tensor:
    """features [S, columns] times the transposed matrix [rows, columns]."""
    rows, columns = matrix.shape
    outputs = torch.empty(len(features), rows, device=matrix.device)
    _forward[(triton.cdiv(rows, _ROWS),)](
        features.contiguous(),
        matrix,
        outputs,
        rows,
        columns,
        SAMPLES=len(features),
        ROWS=_ROWS,
        COLUMNS=triton.next_power_of_2(columns),
        num_warps=1,
    )
    return outputs


def columns_product(left: Tensor, matrix: Tensor) -> Tensor:
    """left [S, rows] times the matrix [rows, columns]."""
    rows, columns = matrix.shape
    samples = len(left)
    width = min(_WIDTH, max(_FEWEST.value, triton.next_power_of_2(columns)))
    across = triton.cdiv(columns, width)
    rows_per_program = _DEPTH * triton.cdiv(rows, _DEPTH * triton.cdiv(_PROGRAMS, across))
    programs = triton.cdiv(rows, rows_per_program)
    partial = torch.empty(programs, samples, columns, device=matrix.device)
    _backward[(programs, across)](
        left.contiguous(),
        matrix,
        partial,
        rows,
        columns,
        rows_per_program,
        SAMPLES=samples,
        DEPTH=_DEPTH,
        WIDTH=width,
        num_warps=4,
        num_stages=3,
    )
    return partial.sum(0)
