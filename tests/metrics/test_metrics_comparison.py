"""Distances between predictive distributions: by hand, and against SciPy and scikit-learn."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError
from scipy.spatial.distance import cityblock
from sklearn.metrics import accuracy_score
from torch import Tensor

from bbh.metrics import agreement, total_variation

METRICS = [agreement, total_variation]


@pytest.fixture
def pair() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2, 200, 5, generator=generator, dtype=torch.float64)
    first, second = logits.softmax(-1)
    return first, second


def test_by_hand():
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.0, 0.0, 1.0]], dtype=torch.float64)
    other = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6], [1.0, 0.0, 0.0]], dtype=torch.float64)
    assert agreement(probs, other) == 1 / 3
    assert total_variation(probs, other) == pytest.approx((0.2 + 0.3 + 1.0) / 3, rel=1e-14)


def test_against_other_libraries(pair: tuple[Tensor, Tensor]):
    probs, reference = pair
    expected = accuracy_score(reference.argmax(1), probs.argmax(1))
    assert agreement(probs, reference) == expected
    distances = [
        cityblock(*rows) / 2 for rows in zip(probs.numpy(), reference.numpy(), strict=True)
    ]
    assert total_variation(probs, reference) == pytest.approx(np.mean(distances), rel=1e-12)


def test_it_is_the_largest_difference_over_all_events(pair: tuple[Tensor, Tensor]):
    probs, reference = (one[:20] for one in pair)
    events = [list(event) for size in range(6) for event in itertools.combinations(range(5), size)]
    differences = torch.stack([(probs - reference)[:, event].sum(1).abs() for event in events])
    expected = differences.max(0).values.mean().item()
    assert total_variation(probs, reference) == pytest.approx(expected, rel=1e-12)


def test_both_are_symmetric_and_know_equal_and_disjoint_predictions(pair: tuple[Tensor, Tensor]):
    for metric in METRICS:
        assert metric(*pair) == metric(*reversed(pair))
    assert (agreement(pair[0], pair[0]), total_variation(pair[0], pair[0])) == (1.0, 0.0)
    certain, elsewhere = torch.eye(3), torch.eye(3).roll(1, 0)
    assert (agreement(certain, elsewhere), total_variation(certain, elsewhere)) == (0.0, 1.0)


def test_the_first_class_is_taken_where_several_are_largest():
    even = torch.full((2, 4), 0.25)
    assert agreement(even, torch.eye(4)[:2]) == 0.5


def test_precisions_may_differ(pair: tuple[Tensor, Tensor]):
    probs, reference = pair
    expected = total_variation(probs, reference)
    assert total_variation(probs.float(), reference) == pytest.approx(expected, rel=1e-6)
    # Half precision is averaged in single.
    even = torch.tensor([[0.5, 0.5]], dtype=torch.float16).expand(5000, 2)
    assert total_variation(even, torch.tensor([[0.75, 0.25]]).expand(5000, 2)) == 0.25


def test_gradients_may_be_attached():
    probs = torch.full((1, 2), 0.5, requires_grad=True)
    assert [type(metric(probs, probs)) for metric in METRICS] == [float] * 2


@pytest.mark.parametrize("metric", METRICS)
def test_bad_input(metric: Callable[[Tensor, Tensor], float]):
    with pytest.raises(ValueError, match="probs: the last axis does not sum to 1"):
        metric(torch.ones(2, 2), torch.eye(2))
    with pytest.raises(ValueError, match=r"reference: values in .* outside"):
        metric(torch.eye(2), torch.tensor([[3.0, -2.0], [0.0, 1.0]]))
    with pytest.raises((ValueError, TypeCheckError)):
        metric(torch.eye(2), torch.eye(3))
    with pytest.raises((ValueError, TypeCheckError)):
        metric(torch.eye(2)[0], torch.eye(2)[0])
