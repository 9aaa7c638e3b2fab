"""TensorFlow's RMSProp, dense and in factors: against its formula in double precision."""

import math
from functools import partial

import pytest
import torch
from torch import nn

import bbh
from bbh.generators.factored.outer_rmsprop import RMSpropSettings, outer_rmsprop_plain_, rmsprop_
from bbh.generators.factored.rmsprop import TensorFlowRMSprop, make_tensorflow_rmsprop
from generators.test_factored_optimizers import posterior_and_data
from interpreter import run_interpreted

SHAPES = [(1, 1), (3, 5), (17, 64), (130, 33), (64, 512), (9, 700), (2, 1030)]
RANKS = (1, 5, 10)
SETTINGS = [(0.9, 1e-5), (0.5, 1e-8)]
STEPS = 4
SKIPPED = 1


def formula(weight, square, gradient, rate, decay, eps):
    """One step in double precision, as TensorFlow 1 documents it."""
    square = decay * square + (1 - decay) * gradient.double() ** 2
    return weight - rate * gradient.double() / (square + eps).sqrt(), square


def compare(update, shape, rank, decay, eps, dtype=torch.float32):
    """Largest relative error of the matrix and its mean square after a few steps."""
    torch.manual_seed(rank)
    # Small weights, so that what the steps add is no smaller.
    weight, square = 0.1 * torch.randn(shape, dtype=dtype), torch.ones(shape, dtype=dtype)
    expected = weight.double(), square.double()
    for number in range(STEPS):
        left, right = (torch.randn(rank, size, dtype=dtype) for size in shape)
        if number == SKIPPED:
            left.fill_(torch.nan)
        else:
            gradient = left.double().T @ right.double()
            expected = formula(*expected, gradient, 0.125, decay, eps)
        skip = torch.tensor(float(number == SKIPPED))
        settings = RMSpropSettings(torch.tensor(0.125), decay, eps, skip)
        update(weight, square, left, right, settings)
    return max(
        ((mine.double() - other).norm() / other.norm()).item()
        for mine, other in zip((weight, square), expected, strict=True)
    )


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 3e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize(("decay", "eps"), SETTINGS)
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_plain_twin(shape, rank, decay, eps, dtype, error, monkeypatch):
    monkeypatch.setattr("bbh.generators.factored.gradients._BLOCK_BYTES", 40_000)  # several blocks
    # Sums of ten products, over three steps.
    assert compare(outer_rmsprop_plain_, shape, rank, decay, eps, dtype) < error


def test_triton_kernel_through_its_interpreter():
    pytest.importorskip("triton", reason="Triton is not installed")
    error = run_interpreted(
        "from generators.test_outer_rmsprop import *\n"
        "from bbh.generators.factored.outer_rmsprop_triton import launch\n"
        # The interpreter is slow: every shape and every rank, not all pairs of them.
        "cases = [(shape, RANKS[i % 3], *SETTINGS[i % 2]) for i, shape in enumerate(SHAPES)]\n"
        "print(max(compare(launch, *case) for case in cases))"
    )
    assert float(error) < 3e-6


def test_by_hand():
    weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = TensorFlowRMSprop([weight], lr=0.1, decay=0.9, eps=1e-5)
    square, expected = [1.0, 1.0], [1.0, -2.0]
    for gradient in ([0.5, -3.0], [0.0, 1.0], [2.0, 0.25]):
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        for i, g in enumerate(gradient):
            square[i] = 0.9 * square[i] + 0.1 * g**2
            expected[i] -= 0.1 * g / math.sqrt(square[i] + 1e-5)
    torch.testing.assert_close(weight.detach(), torch.tensor(expected, dtype=torch.float64))


def test_groups_have_their_own_settings_and_what_has_no_gradient_stays():
    first, second, third = (nn.Parameter(torch.randn(3, 2).double()) for _ in range(3))
    groups = [
        {"params": [first, third]},
        {"params": [second], "lr": torch.tensor(0.5), "decay": 0.25, "eps": 0.125},
        {"params": [nn.Parameter(torch.zeros(2))]},
    ]
    before = third.detach().clone()
    optimizer = TensorFlowRMSprop(groups, lr=0.1)
    ones = torch.ones(3, 2).double()
    expected = [(first.detach().clone(), ones), (second.detach().clone(), ones)]
    for _ in range(3):
        first.grad, second.grad = torch.randn(2, 3, 2).double()
        optimizer.step()
        expected = [
            formula(*expected[0], first.grad, 0.1, 0.9, 1e-5),
            formula(*expected[1], second.grad, 0.5, 0.25, 0.125),
        ]
    torch.testing.assert_close([first.detach(), second.detach()], [w for w, _ in expected])
    assert torch.equal(third, before)
    assert third not in optimizer.state


def test_a_gradient_in_memory_order_of_its_own_belongs_to_the_same_entries():
    weight, gradient = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 3).double().T
    square = torch.ones_like(weight)
    expected = formula(weight.clone(), square, gradient, 0.1, 0.9, 1e-5)
    rmsprop_([weight], [square], [gradient], RMSpropSettings(0.1, 0.9, 1e-5, None))
    torch.testing.assert_close((weight, square), expected)


@pytest.mark.parametrize("clip", [None, 0.1])
def test_the_same_training_with_and_without_factors(clip):
    results = []
    for factored in (True, False):
        posterior, data = posterior_and_data()
        make = partial(make_tensorflow_rmsprop, posterior.weights)
        history = bbh.fit(
            posterior,
            data,
            epochs=3,
            num_data=24,
            optimizer=partial(make if factored else TensorFlowRMSprop, lr=1e-2),
            gradient_clip=clip,
            progress=False,
        )
        results.append((history[-1].total, history[-1].gradient_norm, posterior.state_dict()))
    (total, norm, mine), (other_total, other_norm, others) = results
    assert total == pytest.approx(other_total, rel=1e-4)
    assert norm == pytest.approx(other_norm, rel=1e-3)
    for name, value in mine.items():
        torch.testing.assert_close(value, others[name], rtol=1e-3, atol=1e-4)


def test_goes_on_from_a_state_with_dense_gradients():
    """The numbers are those that earlier versions, which had no factors, stored."""

    def backward(dense):
        posterior, data = posterior_and_data()
        optimizer = make_tensorflow_rmsprop(posterior.weights, posterior.parameters())
        if dense:
            optimizer.release()
        bbh.free_energy(posterior, data[0], num_data=24).total.backward()
        return list(posterior.parameters()), optimizer

    parameters, _ = backward(dense=True)
    squares = [torch.rand_like(one) for one in parameters]
    expected = [
        formula(one.detach().double(), square.double(), one.grad, 0.1, 0.5, 0.01)[0].float()
        for one, square in zip(parameters, squares, strict=True)
    ]
    parameters, optimizer = backward(dense=False)
    settings = {"lr": 0.1, "decay": 0.5, "eps": 0.01, "params": list(range(len(parameters)))}
    state = {number: {"square": square} for number, square in enumerate(squares)}
    optimizer.load_state_dict({"state": state, "param_groups": [settings]})
    optimizer.step()
    found = [one.detach() for one in parameters]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("decay", [-0.1, 0.0, 1.0, math.nan])
def test_a_decay_that_is_none_is_refused(decay):
    with pytest.raises(ValueError, match=f"decay={decay}: give"):
        TensorFlowRMSprop([nn.Parameter(torch.zeros(2))], decay=decay)
