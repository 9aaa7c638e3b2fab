"""peak_bytes on computations whose memory is known by counting."""

import pytest
import torch
from torch import nn

import bbh
from bbh.memory import peak_bytes
from scenarios import LSTMNet, SmallLeNet, TransformerNet, mlp

VECTOR = 4000  # bytes of a thousand float32


def vector(dtype=torch.float32):
    return torch.zeros(1000, dtype=dtype)


def test_all_that_lives_at_once_counts():
    assert peak_bytes(vector) == VECTOR
    assert peak_bytes(lambda: vector(torch.float64)) == 2 * VECTOR
    assert peak_bytes(lambda: [vector() for _ in range(5)]) == 5 * VECTOR


def test_what_has_died_does_not():
    def chain():
        value = vector()
        for _ in range(6):
            value = value + 1  # the old one and the new one
        return value

    assert peak_bytes(chain) == 2 * VECTOR

    def one_after_the_other():
        for _ in range(6):
            vector()  # the allocator hands out the same address again and again

    assert peak_bytes(one_after_the_other) == VECTOR


def test_the_peak_is_not_the_end():
    def rise_and_fall():
        many = [vector() for _ in range(4)]
        total = many[0].sum()
        del many
        return total

    assert peak_bytes(rise_and_fall) == 4 * VECTOR + 4


def test_views_and_in_place_operations_are_free():
    assert peak_bytes(lambda: vector().view(10, 100).T[2:].unsqueeze(0)) == VECTOR
    assert peak_bytes(lambda: vector().add_(1).mul_(2).relu_()) == VECTOR
    assert peak_bytes(lambda: vector().expand(50, 1000)) == VECTOR


def test_a_view_keeps_its_base_alive():
    def hold_one_entry():
        entry = vector()[:1]
        return entry, vector()

    assert peak_bytes(hold_one_entry) == 2 * VECTOR


def test_what_was_there_before_is_not_counted():
    before = vector()
    assert peak_bytes(lambda: before.view(10, 100)[:3].T) == 0
    assert peak_bytes(lambda: before.add_(1)) == 0
    assert peak_bytes(lambda: before + 1) == VECTOR


def test_several_results_of_one_operation():
    # A [4, 250] matrix, 250 values, 250 int64 indices.
    assert peak_bytes(lambda: torch.zeros(4, 250).max(0)) == 4000 + 1000 + 2000


def test_no_graph_is_recorded():
    weight = torch.ones(1000, requires_grad=True)
    results = []
    # With a graph every intermediate result would stay: 4 vectors instead of 2.
    assert peak_bytes(lambda: results.append(weight.exp().exp().exp().exp())) == 2 * VECTOR
    assert not results[0].requires_grad


def test_a_layer():
    layer = nn.Linear(10, 20)
    assert peak_bytes(lambda: layer(torch.ones(3, 10))) == 3 * 10 * 4 + 3 * 20 * 4


def test_measurements_nest():
    inner = []

    def compute():
        value = vector()
        inner.append(peak_bytes(lambda: vector() + 1))
        return value

    assert peak_bytes(compute) == 3 * VECTOR
    assert inner == [2 * VECTOR]


def test_errors_pass_through_and_leave_nothing_switched_on():
    with pytest.raises(ZeroDivisionError):
        peak_bytes(lambda: 1 / 0)
    assert peak_bytes(vector) == VECTOR


@pytest.mark.parametrize("execution", [bbh.Loop(), bbh.Vmap(), None])
def test_forward_pass_of_a_posterior(execution):
    posterior = bbh.methods.bayes_by_backprop(
        mlp(), bbh.likelihoods.Categorical(), execution=execution
    ).eval()
    samples, inputs = posterior.sample(5), torch.randn(100, 4)
    # Hidden layer before and after the ReLU, for one draw in the loop and for five in vmap.
    one_draw = 2 * 100 * 16 * 4
    measured = peak_bytes(lambda: posterior(inputs, samples))
    assert one_draw <= measured
    if execution == bbh.Loop():
        assert measured < 2 * one_draw
    else:
        assert 5 * one_draw <= measured < 10 * one_draw


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (SmallLeNet, lambda: torch.randn(8, 1, 6, 6)),
        (LSTMNet, lambda: torch.randint(0, 3, (8, 5))),
        (TransformerNet, lambda: torch.randint(0, 3, (8, 5))),
    ],
)
def test_memory_grows_with_the_batch(make, inputs):
    posterior = bbh.methods.maximum_a_posteriori(make(), bbh.likelihoods.Categorical()).eval()
    whole, samples = inputs(), posterior.sample(1)
    one = peak_bytes(lambda: posterior(whole[:1], samples))
    eight = peak_bytes(lambda: posterior(whole, samples))
    # Predictions are planned on this: eight examples never take more than eight times one.
    assert one < eight <= 8 * one
