"""Outlier detection against scikit-learn, torchmetrics and counts by hand."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor
from torchmetrics.functional.classification import binary_specificity_at_sensitivity

from bbh.metrics import aupr, auroc, fpr_at_95_tpr

METRICS = [auroc, aupr, fpr_at_95_tpr]
# Few distinct values, so that ties are common.
scores = st.lists(st.integers(0, 6).map(lambda level: level / 8), min_size=1, max_size=40)


def _tensors(in_scores: list[float], out_scores: list[float]) -> tuple[Tensor, Tensor]:
    return torch.tensor(in_scores), torch.tensor(out_scores)


@settings(deadline=None)
@given(in_scores=scores, out_scores=scores)
def test_against_scikit_learn(in_scores: list[float], out_scores: list[float]):
    labels = [0] * len(in_scores) + [1] * len(out_scores)
    pair = _tensors(in_scores, out_scores)
    assert auroc(*pair) == pytest.approx(roc_auc_score(labels, in_scores + out_scores))
    assert aupr(*pair) == pytest.approx(average_precision_score(labels, in_scores + out_scores))


@settings(deadline=None)
@given(in_scores=scores, out_scores=scores)
def test_auroc_counts_pairs(in_scores: list[float], out_scores: list[float]):
    inlier, outlier = _tensors(in_scores, out_scores)
    wins = (outlier[:, None] > inlier).double() + 0.5 * (outlier[:, None] == inlier)
    assert auroc(inlier, outlier) == pytest.approx(wins.mean().item())
    assert auroc(inlier, outlier) == pytest.approx(1 - auroc(outlier, inlier))


@settings(deadline=None)
@given(in_scores=scores, out_scores=scores)
def test_fpr_counts_at_the_largest_sufficient_threshold(
    in_scores: list[float], out_scores: list[float]
):
    inlier, outlier = _tensors(in_scores, out_scores)
    # In integers, because 0.95 is none of the floats.
    sufficient = [t for t in out_scores if 100 * int((outlier >= t).sum()) >= 95 * len(outlier)]
    expected = (inlier >= max(sufficient)).double().mean().item()
    assert fpr_at_95_tpr(inlier, outlier) == pytest.approx(expected)


def test_fpr_against_torchmetrics():
    generator = torch.Generator().manual_seed(0)
    inlier, outlier = torch.rand(2, 300, generator=generator)
    outlier = outlier.sqrt()
    specificity, _ = binary_specificity_at_sensitivity(
        torch.cat([inlier, outlier]), torch.arange(600) // 300, min_sensitivity=0.95
    )
    assert fpr_at_95_tpr(inlier, outlier) == pytest.approx(1 - float(specificity), abs=1e-6)


def test_by_hand_with_ties():
    pair = _tensors([0.1, 0.2, 0.3], [0.2, 0.4])
    # Outlier 0.2 beats one inlier and ties with one; outlier 0.4 beats all three.
    assert auroc(*pair) == pytest.approx((1 + 0.5 + 3) / 6)
    # From the top: 0.4 hit; 0.3 miss; then the tied pair together, two hits among four.
    assert aupr(*pair) == pytest.approx(0.5 * 1 + 0.5 * 2 / 4)
    # All outliers are needed, so the threshold is 0.2 and flags the inliers 0.2 and 0.3.
    assert fpr_at_95_tpr(*pair) == pytest.approx(2 / 3)


def test_fpr_may_miss_one_outlier_of_twenty_but_not_of_nineteen():
    inlier = torch.tensor([0.5, 0.6])
    assert fpr_at_95_tpr(inlier, torch.tensor([0.0] + [1.0] * 19)) == 0
    assert fpr_at_95_tpr(inlier, torch.tensor([0.0] + [1.0] * 18)) == 1


def test_fpr_sees_every_threshold_of_a_straight_piece():
    # Tied pairs make the curve one diagonal, of which only the ends are corners.
    scores = torch.arange(20.0)
    assert fpr_at_95_tpr(scores, scores) == 0.95


def test_ends():
    low, high = torch.tensor([-3.0, 0.0]), torch.tensor([50.0, 70.0, 1e30])
    assert [metric(low, high) for metric in METRICS] == [1, 1, 0]
    assert [metric(high, low) for metric in (auroc, fpr_at_95_tpr)] == [0, 1]
    same = torch.zeros(4)
    assert [metric(same, same[:1]) for metric in METRICS] == [0.5, 0.2, 1]


@pytest.mark.parametrize("metric", METRICS)
def test_low_precision_and_gradients_are_accepted(metric: Callable[[Tensor, Tensor], float]):
    low = torch.zeros(2, dtype=torch.bfloat16)
    high = torch.ones(2, requires_grad=True)
    assert metric(low, high) == (0 if metric is fpr_at_95_tpr else 1)


@pytest.mark.parametrize("metric", METRICS)
def test_bad_input(metric: Callable[[Tensor, Tensor], float]):
    good = torch.zeros(3)
    with pytest.raises(ValueError, match="in_scores: empty"):
        metric(torch.zeros(0), good)
    with pytest.raises(ValueError, match="out_scores: empty"):
        metric(good, torch.zeros(0))
    with pytest.raises(ValueError, match="out_scores: 1 of 1 values are NaN"):
        metric(good, torch.tensor([float("nan")]))
    with pytest.raises((ValueError, TypeCheckError)):
        metric(good.unsqueeze(0), good)
