"""Products with few vectors: Triton's interpreter against double precision."""

import pytest
import torch

from interpreter import run_interpreted

CASES = [
    (samples, rows, columns)
    for samples in (1, 2, 5, 8, 16)
    for rows, columns in ((1, 1), (7, 5), (33, 64), (130, 100), (1100, 16))
]


def compare(rows_product, columns_product, samples, rows, columns):
    """Largest relative error of the two products."""
    torch.manual_seed(samples)
    # What lies behind the matrix must not be read.
    matrix = torch.full((rows + 8, columns), torch.nan)[:rows].normal_()
    features, left = torch.randn(samples, columns), torch.randn(samples, rows)
    expected = features.double() @ matrix.double().T, left.double() @ matrix.double()
    found = rows_product(features, matrix), columns_product(left, matrix)
    return max(
        ((mine.double() - other).norm() / other.norm()).item()
        for mine, other in zip(found, expected, strict=True)
    )


@pytest.mark.slow
def test_triton_kernels_through_their_interpreter():
    pytest.importorskip("triton", reason="Triton is not installed")
    error = run_interpreted(
        "from generators.test_skinny import *\n"
        "from bbh.generators.factored.skinny_triton import columns_product, rows_product\n"
        # The interpreter takes seconds for each of the longest; a GPU takes them all.
        "cases = [case for case in CASES if case[1] < 1100 or case[0] in (1, 5)]\n"
        "print(max(compare(rows_product, columns_product, *case) for case in cases))"
    )
    # Sums of up to 1,100 products in single precision.
    assert float(error) < 1e-5
