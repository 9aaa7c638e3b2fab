"""Calibration error against torchmetrics and by hand, and the curve behind it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from bbh.metrics import ReliabilityCurve, expected_calibration_error, reliability_curve


def _predictions(seed: int, num_examples: int, sharpness: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(num_examples, 4, generator=generator)
    return logits.softmax(-1), torch.randint(4, (num_examples,), generator=generator)


def _error_of(curve: ReliabilityCurve) -> float:
    filled = curve.count > 0
    gaps = (curve.accuracy - curve.confidence).abs()[filled]
    return float((curve.count[filled].double() * gaps).sum() / curve.count.sum())


def test_against_torchmetrics():
    probs, targets = _predictions(0, 500, sharpness=2)
    for num_bins in (1, 10, 15):
        expected = multiclass_calibration_error(probs, targets, 4, n_bins=num_bins)
        ours = expected_calibration_error(probs, targets, num_bins)
        assert ours == pytest.approx(float(expected), abs=1e-6)


def test_by_hand():
    probs = torch.tensor([[0.6, 0.4], [0.7, 0.3], [0.2, 0.8], [0.1, 0.9]], dtype=torch.float64)
    targets = torch.tensor([0, 1, 1, 1])
    # Bins [0.5, 0.75) and [0.75, 1]: |1/2 - 0.65| and |1 - 0.85|, half of the examples each.
    assert expected_calibration_error(probs, targets, num_bins=4) == pytest.approx(0.15)
    curve = reliability_curve(probs, targets, num_bins=4)
    assert curve.count.tolist() == [0, 0, 2, 2]
    assert curve.confidence[2:].tolist() == pytest.approx([0.65, 0.85])
    assert curve.accuracy[2:].tolist() == [0.5, 1]
    assert curve.confidence[:2].isnan().all()
    assert curve.accuracy[:2].isnan().all()


def test_extremes():
    certain = torch.eye(2)[torch.zeros(10, dtype=torch.int64)]
    zeros, ones = torch.zeros(10, dtype=torch.int64), torch.ones(10, dtype=torch.int64)
    assert expected_calibration_error(certain, zeros) == 0
    assert expected_calibration_error(certain, ones) == 1


def test_many_equal_confidences_do_not_drown_in_rounding():
    num_right = 180_000
    probs = torch.tensor([[0.9, 0.1]]).expand(200_000, 2)
    targets = (torch.arange(200_000) >= num_right).long()
    assert expected_calibration_error(probs, targets) == pytest.approx(0, abs=1e-7)


def test_bins_are_closed_on_the_left():
    probs, targets = torch.tensor([[0.5, 0.5], [0.75, 0.25]]), torch.tensor([0, 0])
    assert reliability_curve(probs, targets, num_bins=4).count.tolist() == [0, 0, 1, 1]


def test_confidence_one_shares_the_last_bin():
    # 0.95 right and 1.0 wrong: in one bin |0.5 - 0.975|; a bin each would give (0.05 + 1) / 2.
    probs, targets = torch.tensor([[0.95, 0.05], [1.0, 0.0]]), torch.tensor([0, 1])
    assert expected_calibration_error(probs, targets) == pytest.approx(0.475, abs=1e-6)
    assert reliability_curve(probs, targets).count.tolist() == [0] * 14 + [2]


def test_rounding_above_one_does_not_turn_probabilities_into_logits():
    probs, targets = torch.tensor([[1.0000001, 0.0], [0.6, 0.4]]), torch.tensor([0, 1])
    assert expected_calibration_error(probs, targets) == pytest.approx(0.3, abs=1e-6)


def test_calibrated_predictions_have_a_small_error():
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(50_000, 3, generator=generator).softmax(-1)
    targets = probs.multinomial(1, generator=generator).squeeze(-1)
    assert expected_calibration_error(probs, targets) < 0.01


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 10_000),
    num_examples=st.integers(1, 60),
    sharpness=st.sampled_from([0.0, 1.0, 5.0, 100.0]),
    num_bins=st.integers(1, 30),
)
def test_curve_and_torchmetrics_agree_with_the_error(
    seed: int, num_examples: int, sharpness: float, num_bins: int
):
    probs, targets = _predictions(seed, num_examples, sharpness)
    curve = reliability_curve(probs, targets, num_bins)
    assert [len(part) for part in curve] == [num_bins] * 3
    assert int(curve.count.sum()) == num_examples
    expected = expected_calibration_error(probs, targets, num_bins)
    assert _error_of(curve) == pytest.approx(expected, abs=1e-12)
    # torchmetrics gives a confidence of exactly 1 a bin of its own.
    below_one = probs.clamp(max=1 - 2**-24)
    theirs = multiclass_calibration_error(below_one, targets, 4, n_bins=num_bins)
    assert expected == pytest.approx(float(theirs), abs=1e-6)


def test_bad_input():
    targets = torch.tensor([0, 1])
    for metric in (expected_calibration_error, reliability_curve):
        with pytest.raises(ValueError, match="num_bins: expected at least 1"):
            metric(torch.eye(2), targets, 0)
        with pytest.raises(ValueError, match=r"probs: .* outside"):
            metric(5 * torch.eye(2), targets)
