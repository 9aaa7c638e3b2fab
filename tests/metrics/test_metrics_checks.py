"""Bad input is named before anything is computed."""

import pytest
import torch
from torch import Tensor

from bbh.metrics import checks

PROBS = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.zeros(2, 2), r"scores: expected 1 axes, got shape \[2, 2\]"),
        (torch.zeros(0), r"scores: empty, shape \[0\]"),
        (torch.tensor([1.0, float("nan")]), "scores: 1 of 2 values are NaN or infinite"),
        (torch.tensor([1.0, float("-inf")]), "scores: 1 of 2 values are NaN or infinite"),
        (torch.zeros(2, dtype=torch.complex64), "scores: complex"),
    ],
)
def test_numbers_refuse(values: Tensor, message: str):
    with pytest.raises(ValueError, match=message):
        checks.numbers("scores", values, num_dims=1)


def test_numbers_allow_infinity_on_request_but_never_nan():
    infinite = torch.tensor([1.0, float("inf")])
    assert checks.numbers("lower", infinite, allow_infinite=True).tolist() == infinite.tolist()
    with pytest.raises(ValueError, match="lower: 1 of 1 values are NaN;"):
        checks.numbers("lower", torch.tensor([float("nan")]), allow_infinite=True)


@pytest.mark.parametrize(
    ("given", "returned"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.bool, torch.float32),
        (torch.int64, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_numbers_are_at_least_float32(given: torch.dtype, returned: torch.dtype):
    assert checks.numbers("scores", torch.ones(2, dtype=given)).dtype == returned


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (torch.tensor(1.0), "probs: expected classes on the last axis, got a scalar"),
        (torch.zeros(0, 3), "probs: empty"),
        (torch.tensor([[float("nan"), 1.0]]), "probs: 1 of 2 values are NaN"),
        (
            torch.tensor([[-0.1, 1.1]]),
            r"probs: values in \[-0.1, 1.1\], outside \[0, 1\]; .*softmax",
        ),
        (torch.tensor([[3.0, -2.0]]), "probs: .* outside"),
        (torch.tensor([[0.5, 0.498]]), r"probs: .* not sum to 1 \(off by up to 0.002\)"),
        (PROBS.T, "probs: .* not sum to 1"),
    ],
)
def test_probabilities_refuse(probs: Tensor, message: str):
    with pytest.raises(ValueError, match=message):
        checks.probabilities("probs", probs)


def test_probabilities_forgive_rounding_and_never_exceed_one():
    rounded = torch.tensor([[1.0000005, 0.0], [0.5, 0.4995]])
    assert checks.probabilities("probs", rounded).max() == 1
    assert checks.probabilities("probs", rounded)[1].tolist() == rounded[1].tolist()


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            torch.tensor([0]),
            r"targets: expected one class per row of probs, shape \[2\], got \[1\]",
        ),
        (torch.tensor([[0], [1]]), r"targets: .*got \[2, 1\]; for one-hot"),
        (torch.tensor([0.0, 1.0]), "targets: expected integer classes, got torch.float32"),
        (torch.tensor([True, False]), "targets: expected integer classes, got torch.bool"),
        (torch.tensor([0, 3]), "targets: classes from 0 to 3, but probs has 3 .* 0 to 2"),
        (torch.tensor([-1, 0]), "targets: classes from -1 to 0"),
    ],
)
def test_targets_refused(targets: Tensor, message: str):
    with pytest.raises(ValueError, match=message):
        checks.labelled(PROBS, targets)


def test_targets_of_any_integer_type_become_indices():
    assert checks.labelled(PROBS, torch.tensor([2, 0], dtype=torch.int32))[1].dtype == torch.int64


def test_entropies_refuse_other_units_and_forgive_rounding():
    with pytest.raises(ValueError, match=r"entropies: .* outside \[0, 0.6931\]"):
        checks.entropies(torch.tensor([1.0]), max_entropy=0.693147)  # 1 bit, not 1 nat
    with pytest.raises(ValueError, match="entropies: values in"):
        checks.entropies(torch.tensor([-0.1]), max_entropy=0.693147)
    rounded = torch.tensor([-1e-6, 0.6932], dtype=torch.float64)
    assert checks.entropies(rounded, max_entropy=0.693147).tolist() == [0, 0.693147]


def test_same_shape_refuses_what_would_broadcast():
    with pytest.raises(ValueError, match=r"mean: shape \[2\] differs from \[2, 1\] of targets"):
        checks.same_shape("mean", torch.zeros(2), "targets", torch.zeros(2, 1))


def test_at_least():
    assert checks.at_least("num_bins", 1, 1) == 1
    with pytest.raises(ValueError, match="num_bins: expected at least 1, got 0"):
        checks.at_least("num_bins", 0, 1)
