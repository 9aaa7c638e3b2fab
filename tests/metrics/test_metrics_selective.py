"""Risk and coverage by hand, by sorting, and over all orders of tied examples."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch import Tensor

from bbh.metrics import risk_coverage_area, risk_coverage_curve


def _untied_curve(errors: Tensor) -> Tensor:
    return errors.double().cumsum(0) / torch.arange(1, len(errors) + 1)


def test_by_hand():
    uncertainty = torch.tensor([0.9, 0.1, 0.5, 0.2])
    errors = torch.tensor([True, False, True, False])
    curve = risk_coverage_curve(uncertainty, errors)
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1]
    assert curve.risk.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 2])
    assert risk_coverage_area(uncertainty, errors) == pytest.approx((1 / 3 + 1 / 2) / 4)


def test_without_ties_it_is_a_sort_and_a_running_mean():
    generator = torch.Generator().manual_seed(0)
    uncertainty = torch.randperm(300, generator=generator).double()
    losses = torch.rand(300, generator=generator, dtype=torch.float64)
    expected = _untied_curve(losses[uncertainty.argsort()])
    torch.testing.assert_close(risk_coverage_curve(uncertainty, losses).risk, expected)
    area = risk_coverage_area(uncertainty, losses)
    assert area == pytest.approx(expected.mean().item())


def test_ties_are_the_mean_over_all_their_orders():
    # Two tied blocks, of three and of two, around a single example.
    uncertainty = torch.tensor([0.1, 0.1, 0.1, 0.4, 0.7, 0.7])
    errors = torch.tensor([1, 0, 0, 1, 0, 1])
    orders = [
        [*first, 3, *last] for first in permutations([0, 1, 2]) for last in permutations([4, 5])
    ]
    expected = torch.stack([_untied_curve(errors[order]) for order in orders]).mean(0)
    torch.testing.assert_close(risk_coverage_curve(uncertainty, errors).risk, expected)


def test_ends():
    errors = torch.tensor([False, False, False, True])
    best, worst = torch.arange(4.0), -torch.arange(4.0)
    assert risk_coverage_area(best, errors) == pytest.approx(1 / 16)
    assert risk_coverage_area(worst, errors) == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    # Uncertainty that says nothing gives the overall error at every coverage.
    assert risk_coverage_curve(torch.ones(4), errors).risk.tolist() == [0.25] * 4


@settings(deadline=None)
@given(
    examples=st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=30),
    seed=st.integers(0, 1000),
)
def test_the_order_of_the_inputs_does_not_matter(examples: list[tuple[int, bool]], seed: int):
    uncertainty = torch.tensor([float(level) for level, _ in examples])
    errors = torch.tensor([wrong for _, wrong in examples])
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed))
    curve = risk_coverage_curve(uncertainty, errors)
    shuffled = risk_coverage_curve(uncertainty[order], errors[order])
    assert curve.risk.tolist() == shuffled.risk.tolist()
    assert curve.risk[-1].item() == pytest.approx(errors.double().mean().item())


def test_bad_input():
    for metric in (risk_coverage_curve, risk_coverage_area):
        with pytest.raises(ValueError, match="uncertainty: 1 of 2 values are NaN"):
            metric(torch.tensor([0.0, float("nan")]), torch.zeros(2))
        with pytest.raises(ValueError, match="uncertainty: empty"):
            metric(torch.zeros(0), torch.zeros(0))
        with pytest.raises((ValueError, TypeCheckError)):
            metric(torch.zeros(2), torch.zeros(3))
