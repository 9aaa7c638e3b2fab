"""The fused nearest-neighbour sums: Triton's interpreter against sorting in double precision."""

import pytest
import torch

from bbh.kernels.neighbours import sum_log_distances, sum_log_distances_plain
from kernels.interpreter import run_interpreted

FLOOR = 1e-4
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
        (11, 0),
    )
    for neighbours in ((1,) if prior else (1, 3))
    for weights in (1, 33, 300)
    if neighbours < samples
]


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


def test_triton_kernel_through_its_interpreter():
    pytest.importorskip("triton", reason="Triton is not installed")
    errors = run_interpreted(
        "from kernels.test_neighbours import *\n"
        "from bbh.kernels.neighbours_triton import log_distances\n"
        "print(max(compare(log_distances, *case) for case in CASES))"
    )
    # Differences of numbers of size 0.1 that are 1e-3 apart: a thousand times the rounding.
    assert float(errors) < 1e-4


def test_equal_draws_stay_finite():
    values = torch.zeros(5, 3, requires_grad=True)
    total = sum_log_distances(values, None, FLOOR)
    total.backward()
    assert total.item() == pytest.approx(15 * torch.tensor(FLOOR).log().item())
    assert values.grad.abs().max() == 0
