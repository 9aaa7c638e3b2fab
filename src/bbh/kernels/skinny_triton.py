# pyright: basic, reportInvalidTypeForm=false, reportMissingImports=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
"""Products of a few vectors with a large matrix, each reading the matrix once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows of the matrix per program of the first product.
_ROWS = 8
# Rows in flight per program of the second, and how many programs there are at most: enough
# together to keep the memory of a large card busy.
_UNROLLED = tl.constexpr(8)
_PROGRAMS = 1056


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
    PADDED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * rows_per_program
    column = tl.arange(0, COLUMNS)
    in_columns = column < columns
    s = tl.arange(0, PADDED)
    total = tl.zeros((PADDED, COLUMNS), tl.float32)
    for start in range(0, rows_per_program, _UNROLLED):
        for offset in tl.static_range(_UNROLLED):
            row = first + start + offset
            # The last program's rows may end early.
            width = tl.where(row < rows, columns, 0)
            depth = tl.where(row < rows, SAMPLES, 0)
            w = tl.load(matrix + row * columns + column, column < width, other=0.0)
            g = tl.load(left + row * SAMPLES + s, s < depth, other=0.0)
            total += g[:, None] * w[None, :]
    place = (tl.program_id(0) * SAMPLES + s)[:, None] * columns + column[None, :]
    tl.store(partial + place, total, (s < SAMPLES)[:, None] & in_columns[None, :])


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
        num_warps=8,
    )
    return outputs


def columns_product(left: Tensor, matrix: Tensor) -> Tensor:
    """left [S, rows] times the matrix [rows, columns]."""
    rows, columns = matrix.shape
    samples = len(left)
    rows_per_program = _UNROLLED.value * triton.cdiv(rows, _PROGRAMS * _UNROLLED.value)
    programs = triton.cdiv(rows, rows_per_program)
    partial = torch.empty(programs, samples, columns, device=matrix.device)
    _backward[(programs,)](
        left.T.contiguous(),
        matrix,
        partial,
        rows,
        columns,
        rows_per_program,
        SAMPLES=samples,
        PADDED=triton.next_power_of_2(samples),
        COLUMNS=triton.next_power_of_2(columns),
        num_warps=4,
    )
    return partial.sum(0)
