"""The compiled loops for output layers against double precision and against torch's Adam."""

import pytest
import torch

from bbh import compiled
from bbh.generators.factored import gradients, loops_cpu
from bbh.generators.factored.loops_cpu import loops_for
from bbh.generators.factored.outer_adam import outer_adam_, outer_adam_loop_
from bbh.generators.factored.skinny import (
    columns_product,
    columns_product_and_totals,
    gram,
    rows_product,
)
from generators.test_outer_adam import SETTINGS
from generators.test_outer_adam import compare as compare_adam
from generators.test_skinny import compare as compare_products

pytestmark = pytest.mark.skipif(compiled.compiler() is None, reason="there is no C++ compiler")


@pytest.fixture(autouse=True)
def compiling(monkeypatch):
    """Compiles anew, in about a second: other tests find no loop, and leave that behind."""
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")
    loops_cpu._loops.cache_clear()
    yield monkeypatch
    loops_cpu._loops.cache_clear()


@pytest.mark.parametrize("rows", [1, 7, 8, 1000])
@pytest.mark.parametrize(("samples", "columns"), [(2, 16), (10, 64)])
def test_products(samples, columns, rows):
    assert loops_for(torch.empty(samples, columns), torch.empty(rows, columns)) is not None
    # Sums of up to a thousand products in single precision.
    assert compare_products(rows_product, columns_product, samples, rows, columns) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("samples", "columns"), [(1, 32), (5, 512), (16, 48), (8, 128), (16, 512)])
def test_products_of_other_sizes(samples, columns):
    assert compare_products(rows_product, columns_product, samples, 333, columns) < 1e-5
    assert compare_adam(outer_adam_loop_, (333, columns), samples, SETTINGS[1]) < 3e-6


@pytest.mark.parametrize("rows", [1, 15, 1000])
@pytest.mark.parametrize("samples", [1, 5, 10, 16])
def test_sums_beside_the_products(samples, rows):
    left, matrix = torch.randn(samples, rows), torch.randn(rows, 16)
    loops = loops_for(left, matrix)
    assert loops is not None
    product, totals = loops.columns_product_and_totals(left, matrix)
    exact = left.double()
    torch.testing.assert_close(product, (exact @ matrix.double()).float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(totals, exact.sum(0).float())
    products = (exact @ exact.T).float()
    torch.testing.assert_close(loops.gram(left, matrix), products, rtol=1e-4, atol=1e-4)


def test_the_bias_is_added():
    features, matrix, bias = torch.randn(10, 64), torch.randn(33, 64), torch.randn(33)
    expected = features.double() @ matrix.double().T + bias.double()
    torch.testing.assert_close(rows_product(features, matrix, bias), expected.float())


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("rows", [1, 130])
def test_adam(rows, settings):
    assert compare_adam(outer_adam_loop_, (rows, 64), 10, settings) < 3e-6


def test_results_do_not_depend_on_the_number_of_threads(compiling):
    compiling.setattr(loops_cpu, "_ENTRIES_PER_PART", 64 * 100)
    features, left, matrix = torch.randn(10, 64), torch.randn(10, 1000), torch.randn(1000, 64)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            products = rows_product(features, matrix), columns_product(left, matrix)
            found.append((*products, *columns_product_and_totals(left, matrix), gram(left, matrix)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_gradients_are_those_of_a_linear_layer():
    def gradient(collect):
        torch.manual_seed(0)
        features, bias = torch.randn(10, 64, requires_grad=True), torch.randn(500)
        matrix = torch.nn.Parameter(torch.randn(500, 64))
        bias.requires_grad_()
        if collect:
            gradients.collect_factors(matrix)
        gradients.outer_linear(features, matrix, bias).square().mean().backward()
        factors = gradients.factors_of(matrix)
        dense = matrix.grad if factors is None else factors.left.T @ factors.right
        return features.grad, bias.grad, dense

    for one, other in zip(gradient(True), gradient(False), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("vectors", "matrix"),
    [
        (torch.empty(17, 64), torch.empty(3, 64)),
        (torch.empty(10, 20), torch.empty(3, 20)),
        (torch.empty(10, 64).double(), torch.empty(3, 64).double()),
        (torch.empty(10, 64), torch.empty(64, 3).T),
        (torch.empty(10, 64, device="meta"), torch.empty(3, 64, device="meta")),
    ],
)
def test_what_has_no_loop(vectors, matrix):
    assert loops_for(vectors, matrix) is None


def test_moments_in_half_precision_are_left_to_torch():
    weight, moments = torch.randn(4, 64), torch.zeros(2, 4, 64, dtype=torch.bfloat16)
    left, right = torch.randn(10, 4), torch.randn(10, 64)
    outer_adam_(
        weight,
        *moments,
        left,
        right,
        rate=0.1,
        step=torch.ones(()),
        skip=None,
        settings=SETTINGS[0],
    )
    assert (moments != 0).all()
