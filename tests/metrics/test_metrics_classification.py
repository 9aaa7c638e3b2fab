"""Classification metrics against scikit-learn and by hand."""

import math
from collections.abc import Callable

import pytest
import torch
from jaxtyping import TypeCheckError
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
from torch import Tensor

from bbh.metrics import accuracy, brier, error, nll

METRICS = [accuracy, error, nll, brier]


@pytest.fixture
def predictions() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(200, 5, generator=generator, dtype=torch.float64)
    return logits.softmax(-1), torch.randint(5, (200,), generator=generator)


def test_accuracy_and_error_against_scikit_learn(predictions: tuple[Tensor, Tensor]):
    probs, targets = predictions
    expected = accuracy_score(targets, probs.argmax(-1))
    assert accuracy(probs, targets) == expected
    assert error(probs, targets) == pytest.approx(100 * (1 - expected), rel=1e-14)


def test_nll_against_scikit_learn(predictions: tuple[Tensor, Tensor]):
    probs, targets = predictions
    expected = log_loss(targets.numpy(), probs.numpy(), labels=range(5))
    assert nll(probs, targets) == pytest.approx(expected, rel=1e-12)


def test_brier_against_scikit_learn(predictions: tuple[Tensor, Tensor]):
    probs, targets = predictions
    expected = brier_score_loss(
        targets.numpy(), probs.numpy(), labels=list(range(5)), scale_by_half=False
    )
    assert brier(probs, targets) == pytest.approx(expected, rel=1e-12)


def test_by_hand():
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]], dtype=torch.float64)
    targets = torch.tensor([0, 2])
    assert accuracy(probs, targets) == 0.5
    assert error(probs, targets) == 50
    assert nll(probs, targets) == pytest.approx(-(math.log(0.7) + math.log(0.3)) / 2)
    assert brier(probs, targets) == pytest.approx((0.09 + 0.04 + 0.01 + 0.01 + 0.36 + 0.49) / 2)


def test_certainty():
    probs, right, wrong = torch.eye(3), torch.arange(3), torch.tensor([1, 2, 0])
    assert [metric(probs, right) for metric in METRICS] == [1, 0, 0, 0]
    assert [metric(probs, wrong) for metric in (accuracy, error, brier)] == [0, 100, 2]


def test_uniform():
    probs, targets = torch.full((4, 10), 0.1, dtype=torch.float64), torch.arange(4)
    assert nll(probs, targets) == pytest.approx(math.log(10))
    assert brier(probs, targets) == pytest.approx(0.9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nll_of_an_impossible_target_is_finite(dtype: torch.dtype):
    probs, targets = torch.tensor([[1.0, 0.0]], dtype=dtype), torch.tensor([1])
    assert nll(probs, targets) == pytest.approx(-math.log(torch.finfo(dtype).tiny))
    small = torch.tensor([[1 - 1e-30, 1e-30]], dtype=dtype)
    assert nll(small, targets) == pytest.approx(30 * math.log(10))


def test_half_precision_is_averaged_in_single():
    probs = torch.tensor([[0.5, 0.5]], dtype=torch.float16).expand(5000, 2)
    targets = torch.zeros(5000, dtype=torch.int64)
    assert nll(probs, targets) == pytest.approx(math.log(2), rel=1e-6)
    assert brier(probs, targets) == pytest.approx(0.5, rel=1e-6)


def test_gradients_may_be_attached():
    probs = torch.full((1, 2), 0.5, requires_grad=True)
    assert [type(metric(probs, torch.tensor([0]))) for metric in METRICS] == [float] * 4


@pytest.mark.parametrize("metric", METRICS)
def test_bad_input(metric: Callable[[Tensor, Tensor], float]):
    targets = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="probs: the last axis does not sum to 1"):
        metric(torch.ones(2, 2), targets)
    with pytest.raises(ValueError, match="targets: classes from 0 to 2"):
        metric(torch.eye(2), torch.tensor([0, 2]))
    with pytest.raises((ValueError, TypeCheckError)):
        metric(torch.eye(2)[0], targets)
    with pytest.raises((ValueError, TypeCheckError)):
        metric(torch.eye(2), torch.eye(2))
