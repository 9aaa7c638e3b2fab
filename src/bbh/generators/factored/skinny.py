"""Products of a few vectors with a matrix of thousands to millions of rows.

Libraries compute these much more slowly than the matrix can be read from memory.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.generators.factored.loops_cpu import loops_for
from bbh.triton_available import triton_available

# Limits for the Triton kernels. For matrices with fewer entries there is little time to save; wider
# rows or more vectors do not fit in registers.
_SMALLEST = 2**20
_WIDEST = 1024
_MOST = 16


def rows_product(
    features: Float[Tensor, "S columns"],
    matrix: Float[Tensor, "rows columns"],
    bias: Float[Tensor, " rows"] | None = None,
) -> Float[Tensor, "S rows"]:
    """features @ matrixᵀ + bias, with a kernel of our own where it is faster."""
    loops = loops_for(features, matrix)
    if loops is not None:
        return loops.rows_product(features, matrix, bias)
    if _pays(features, matrix):
        from bbh.generators.factored import skinny_triton

        product = skinny_triton.rows_product(features, matrix)
    else:
        product = features @ matrix.T
    return product if bias is None else product + bias


def columns_product(
    left: Float[Tensor, "S rows"], matrix: Float[Tensor, "rows columns"]
) -> Float[Tensor, "S columns"]:
    """left @ matrix, with a kernel of our own where it is faster."""
    if _pays(left, matrix):
        from bbh.generators.factored import skinny_triton

        return skinny_triton.columns_product(left, matrix)
    loops = loops_for(left, matrix)
    return left @ matrix if loops is None else loops.columns_product(left, matrix)


def columns_product_and_totals(
    left: Float[Tensor, "S rows"], matrix: Float[Tensor, "rows columns"]
) -> tuple[Float[Tensor, "S columns"], Float[Tensor, " rows"]]:
    """left @ matrix, and the sum of left over its first axis, in one pass where there is a loop."""
    loops = loops_for(left, matrix)
    if loops is None:
        return columns_product(left, matrix), left.sum(0)
    return loops.columns_product_and_totals(left, matrix)


def gram(
    left: Float[Tensor, "S rows"], matrix: Float[Tensor, "rows columns"]
) -> Float[Tensor, "S S"]:
    """left @ leftᵀ, for the left factor of a gradient of this matrix."""
    loops = loops_for(left, matrix)
    return left @ left.T if loops is None else loops.gram(left, matrix)


def _pays(vectors: Tensor, matrix: Tensor) -> bool:
    return (
        matrix.is_cuda
        and matrix.dtype == vectors.dtype == torch.float32
        and matrix.numel() >= _SMALLEST
        and matrix.shape[1] <= _WIDEST
        and len(vectors) <= _MOST
        and triton_available()
    )
