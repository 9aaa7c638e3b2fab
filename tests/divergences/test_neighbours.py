"""The fused nearest-neighbour sums: Triton's interpreter against sorting in double precision."""

import math

import pytest
import torch

from bbh import compiled
from bbh.divergences import neighbours_cpu, neighbours_rows
from bbh.divergences.neighbours import (
    neighbour_distance,
    sum_log_distances,
    sum_log_distances_plain,
)
from interpreter import run_interpreted

FLOOR = 1e-4
needs_compiler = pytest.mark.skipif(compiled.compiler() is None, reason="there is no C++ compiler")
CASES = [
    (samples, prior, neighbours, weights)
    for samples, prior in (
        (2, 0),
        (2, 1),
        (3, 5),
        (5, 5),
        (5, 16),
        (8, 3),
        (16, 16),
        (5, 0),
        (10, 0),
        (11, 0),
    )
    for neighbours in ((1,) if prior else (1, 2, 3))
    for weights in (1, 33, 150)
    if neighbours < samples
]
# The interpreter takes seconds for the longest of the kernels.
INTERPRETED = [case for case in CASES if case[3] == 150 and case[:2] != (16, 16)]


def compare(fused, samples, prior, neighbours, weights):
    """Relative errors of the sum and of its gradient."""
    torch.manual_seed(samples)
    values = torch.randn(samples, weights) * 0.1
    reference = torch.randn(prior, weights) if prior else None
    exact = values.double().requires_grad_()
    known = None if reference is None else reference.double()
    total = sum_log_distances_plain(exact, known, FLOOR, neighbours)
    (gradient,) = torch.autograd.grad(total, exact)
    mine, slope = fused(values, reference, FLOOR, neighbours)
    return max(
        ((mine.double() - total).abs() / total.abs()).item(),
        ((slope.double() - gradient).norm() / gradient.norm()).item(),
    )


def hidden(fused):
    """Draws that are no ordinary numbers, of which the sum says nothing."""
    found = []
    for value in (torch.nan, torch.inf, -torch.inf, 1e25):
        for draw in (0, 4):
            values = torch.randn(5, 7)
            values[draw, 3] = value
            if fused(values, None, FLOOR, 3)[0].isfinite():
                found.append((value, draw))
    return found


def test_without_a_compiler():
    # Differences of numbers of size 0.1 that are 1e-3 apart: a thousand times the rounding.
    assert max(compare(neighbours_cpu.log_distances, *case) for case in CASES) < 1e-4


@pytest.mark.parametrize("samples", range(2, 17))
def test_any_neighbour_of_any_number_of_draws(samples):
    for neighbours in range(1, samples):
        assert compare(neighbours_cpu.log_distances, samples, 0, neighbours, 40) < 1e-4


@pytest.fixture
def compiling(monkeypatch):
    """Compiles whatever there is, and forgets afterwards what it found out about compilers."""
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")
    neighbours_cpu._compiled.cache_clear()
    yield monkeypatch
    neighbours_cpu._compiled.cache_clear()


@needs_compiler
@pytest.mark.parametrize(
    ("samples", "prior", "neighbours"),
    [
        (5, 0, 3),
        (10, 0, 2),
        (5, 5, 1),
        # Each takes a second to compile.
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((2, 0, 1), (2, 1, 1), (5, 16, 1), (10, 10, 1), (11, 0, 10), (16, 0, 5))
        ),
    ],
)
def test_with_a_compiler(compiling, samples, prior, neighbours):
    for weights in (1, 33, 300):
        error = compare(neighbours_cpu.log_distances, samples, prior, neighbours, weights)
        assert error < 1e-4
    sizes = (samples, prior) if prior else (samples,)
    assert neighbours_cpu._compiled(sizes, FLOOR, neighbours) is not None


@needs_compiler
def test_compiled_loop_sees_draws_that_are_no_numbers(compiling):
    assert hidden(neighbours_cpu.log_distances) == []


def test_other_precisions_are_not_compiled(compiling):
    values = torch.randn(5, 33, dtype=torch.float64)
    total, gradient = neighbours_cpu.log_distances(values, None, FLOOR, 3)
    assert gradient.dtype == torch.float64
    assert total.item() == pytest.approx(sum_log_distances_plain(values, None, FLOOR, 3).item())
    assert neighbours_cpu._compiled.cache_info().currsize == 0


def test_blocks_are_put_together(monkeypatch):
    monkeypatch.setattr(neighbours_cpu, "_BLOCK", 7)
    assert compare(neighbours_cpu.log_distances, 5, 5, 1, 33) < 1e-4


@pytest.mark.parametrize("size", range(1, 17))
def test_network_sorts_every_order_of_zeros_and_ones(size):
    # The zero-one principle (Knuth): what sorts those sorts everything.
    rows = list(torch.arange(2**size).unsqueeze(0) >> torch.arange(size).unsqueeze(1) & 1)
    for low, high in neighbours_rows.network(size):
        rows[low], rows[high] = (
            torch.minimum(rows[low], rows[high]),
            torch.maximum(rows[low], rows[high]),
        )
    stacked = torch.stack(rows)
    assert torch.equal(stacked, stacked.sort(0).values)


def test_a_value_between_two_references_takes_one_of_them():
    values, reference = torch.tensor([[0.5], [3.0]]), torch.tensor([[0.0], [1.0]])
    total, gradient = neighbours_cpu.log_distances(values, reference, 1e-6, 1)
    # log(0.5 / 2.5) + log(2 / 2.5).
    assert total.item() == pytest.approx(math.log(0.2) + math.log(0.8), abs=1e-5)
    # d/dx of log|x − 0| − 2 log(y − x) at 0.5, and of log(y − 1) − 2 log(y − x) at 3.
    assert gradient.flatten().tolist() == pytest.approx([2 + 0.8, 0.5 - 0.8], abs=1e-4)


def test_triton_kernel_through_its_interpreter():
    pytest.importorskip("triton", reason="Triton is not installed")
    error, unseen = run_interpreted(
        "import warnings\n"
        "from divergences.test_neighbours import *\n"
        "from bbh.divergences.neighbours_triton import log_distances\n"
        "print(max(compare(log_distances, *case) for case in INTERPRETED))\n"
        "warnings.simplefilter('ignore')\n"  # NumPy's, of infinite differences
        "print(hidden(log_distances))"
    ).splitlines()
    # Differences of numbers of size 0.1 that are 1e-3 apart: a thousand times the rounding.
    assert float(error) < 1e-4
    assert unseen == "[]"


def test_draws_that_are_no_numbers_are_seen():
    assert hidden(lambda *arguments: (sum_log_distances_plain(*arguments),)) == []
    assert hidden(neighbours_cpu.log_distances) == []


def by_scale(fused, neighbours):
    """For draws of which many are equal, both sides of Σ x·gradient = Σ ν²/(ν² + floor²).

    It is the slope of the sum when all draws are scaled, whichever of several equally near
    neighbours was taken.
    """
    values = torch.randint(4, (10, 200)).float()
    slope = (values * fused(values, None, 0.5, neighbours)[1]).sum(0)
    squared = neighbour_distance(values.sort(0).values, neighbours).square()
    return slope, (squared / (squared + 0.25)).sum(0)


@pytest.mark.parametrize("neighbours", [1, 2, 5, 9])
def test_equal_draws_have_a_gradient(neighbours):
    torch.testing.assert_close(*by_scale(neighbours_cpu.log_distances, neighbours))


@needs_compiler
def test_equal_draws_have_a_gradient_in_the_compiled_loop(compiling):
    torch.testing.assert_close(*by_scale(neighbours_cpu.log_distances, 2))


def test_equal_draws_stay_finite():
    values = torch.zeros(5, 3, requires_grad=True)
    total = sum_log_distances(values, None, FLOOR)
    total.backward()
    assert total.item() == pytest.approx(15 * torch.tensor(FLOOR).log().item())
    assert values.grad.abs().max() == 0
