# pyright: basic, reportInvalidTypeForm=false, reportMissingImports=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
"""Products of a few vectors with a large matrix, each reading the matrix once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# One warp per program: sums along a row stay within it, and four rows in flight are enough.
_ROWS = 4
# The second product as a loop of small tensor-core products, whose loads run ahead of them.
_DEPTH = 64
_WIDTH = 128
# Programs: enough together to keep the memory of a large card busy.
_PROGRAMS = 528
# The fewest rows of a tensor-core product.
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
        # The last program's rows may end early.
        in_rows = row < rows
        inside = in_rows[:, None] & in_columns[None, :]
        w = tl.load(matrix + row[:, None] * columns + column[None, :], inside, other=0.0)
        wanted = in_samples[:, None] & in_rows[None, :]
        g = tl.load(left + s[:, None] * rows + row[None, :], wanted, other=0.0)
        # Each factor as a sum of rounded ones: tensor cores with single precision's error.
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
