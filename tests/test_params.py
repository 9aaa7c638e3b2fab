"""Named weights: laying them side by side and cutting them back, and choosing them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bbh.samples import (
    Shapes,
    TensorTable,
    fan_in,
    flatten,
    select_bayesian,
    size,
    trainable_parameters,
    unflatten,
)
from scenarios import BatchNormNet, LeNet, LSTMNet, TiedNet, TransformerNet, TwoInputs

shapes_strategy = st.lists(
    st.lists(st.integers(1, 4), min_size=0, max_size=4), min_size=1, max_size=5
).map(lambda sizes: {f"layer{i}.weight": torch.Size(shape) for i, shape in enumerate(sizes)})


# --- Flatten and unflatten ------------------------------------------------------------------


@given(shapes_strategy, st.integers(1, 4))
def test_unflatten_then_flatten_changes_nothing(shapes: Shapes, num_samples: int):
    matrix = torch.arange(float(num_samples * size(shapes))).view(num_samples, -1)
    samples = unflatten(matrix, shapes)
    assert {name: value.shape for name, value in samples.items()} == {
        name: (num_samples, *shape) for name, shape in shapes.items()
    }
    assert torch.equal(flatten(samples, shapes), matrix)


@given(shapes_strategy, st.integers(1, 4))
def test_flatten_then_unflatten_changes_nothing(shapes: Shapes, num_samples: int):
    samples = {name: torch.randn(num_samples, *shape) for name, shape in shapes.items()}
    back = unflatten(flatten(samples, shapes), shapes)
    assert back.keys() == samples.keys()
    assert all(torch.equal(back[name], samples[name]) for name in shapes)


@given(shapes_strategy)
def test_size_is_the_number_of_columns(shapes: Shapes):
    samples = {name: torch.zeros(2, *shape) for name, shape in shapes.items()}
    assert flatten(samples, shapes).shape == (2, size(shapes))
    assert size(shapes) == sum(value[0].numel() for value in samples.values())


@given(shapes_strategy, st.data())
def test_flatten_takes_the_named_tensors_in_the_shapes_order(shapes: Shapes, data):
    names = data.draw(st.permutations(list(shapes)))
    some = {name: shapes[name] for name in names[: data.draw(st.integers(1, len(names)))]}
    samples = {
        name: torch.full((1, *shape), float(i)) for i, (name, shape) in enumerate(shapes.items())
    }
    order = list(shapes)
    expected = [float(order.index(name)) for name in some for _ in range(math.prod(shapes[name]))]
    assert flatten(samples, some)[0].tolist() == expected


def test_row_major_order_within_a_tensor():
    samples = {"a": torch.arange(6.0).view(1, 2, 3), "s": torch.tensor([6.0])}
    shapes: Shapes = {"a": torch.Size([2, 3]), "s": torch.Size([])}
    assert flatten(samples, shapes).tolist() == [[0, 1, 2, 3, 4, 5, 6]]


def test_gradients_pass_both_ways():
    shapes: Shapes = {"a": torch.Size([2]), "s": torch.Size([])}
    matrix = torch.ones(2, 3, requires_grad=True)
    flatten(unflatten(matrix, shapes), shapes).sum().backward()
    assert torch.equal(matrix.grad, torch.ones(2, 3))  # type: ignore[arg-type]


# --- Fan-in ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (nn.Linear(7, 3), {"weight": 7, "bias": 7}),
        (nn.Conv2d(4, 6, (3, 5)), {"weight": 60, "bias": 60}),
        (nn.Conv2d(4, 6, 3, groups=2), {"weight": 18, "bias": 18}),
        (nn.Sequential(nn.Linear(7, 3)), {"0.weight": 7, "0.bias": 7}),
        (nn.LayerNorm(5), {"weight": 5, "bias": 5}),
        (
            nn.LSTM(4, 3),
            {"weight_ih_l0": 4, "weight_hh_l0": 3, "bias_ih_l0": 4, "bias_hh_l0": 3},
        ),
    ],
    ids=str,
)
def test_fan_in(network: nn.Module, expected: dict[str, int]):
    shapes = {name: value.shape for name, value in network.named_parameters()}
    assert {name: fan_in(name, shapes) for name in shapes} == expected


def test_fan_in_of_kernels_is_what_torch_initialises_with():
    network = LeNet()
    shapes = {name: value.shape for name, value in network.named_parameters()}
    for name, value in network.named_parameters():
        # torch draws kernels and biases from U(−1/√fan_in, 1/√fan_in).
        bound = fan_in(name, shapes) ** -0.5
        assert value.abs().max() <= bound + 1e-6
        # The largest of at least ten uniform numbers.
        assert value.abs().max() > 0.5 * bound


def test_fan_in_of_vectors_and_scalars_is_their_own():
    shapes: Shapes = {"position": torch.Size([5]), "temperature": torch.Size([])}
    assert fan_in("position", shapes) == 5
    assert fan_in("temperature", shapes) == 1


# --- Selection ------------------------------------------------------------------------------


def test_all_but_normalisation_layers_by_default():
    assert select_bayesian(BatchNormNet(), None) == [
        "conv.weight",
        "conv.bias",
        "head.weight",
        "head.bias",
    ]
    names = select_bayesian(TransformerNet(), None)
    assert not any("norm" in name for name in names)
    assert "position" in names


@pytest.mark.parametrize(
    ("bayesian", "expected"),
    [
        ("fc2", ["fc2.weight", "fc2.bias"]),
        ("*.bias", ["conv1.bias", "conv2.bias", "fc1.bias", "fc2.bias"]),
        (["fc2.weight", "conv1"], ["conv1.weight", "conv1.bias", "fc2.weight"]),
        (lambda name, value: value.dim() == 4, ["conv1.weight", "conv2.weight"]),
    ],
)
def test_selection_by_name_module_pattern_and_predicate(bayesian, expected: list[str]):
    assert select_bayesian(LeNet(), bayesian) == expected


def test_tied_weights_answer_to_both_names_and_count_once():
    assert select_bayesian(TiedNet(), "output.weight") == ["embedding.weight"]
    assert list(trainable_parameters(TiedNet())).count("embedding.weight") == 1
    assert "output.weight" not in trainable_parameters(TiedNet())


def test_a_name_is_not_the_beginning_of_another():
    # "fc" is no module, and must not take fc1 and fc2.
    with pytest.raises(ValueError, match="Did you mean"):
        select_bayesian(LeNet(), "fc1.weigt")
    with pytest.raises(ValueError, match="matches no parameter"):
        select_bayesian(LeNet(), "fc")


def test_frozen_parameters_are_never_selected():
    network = TwoInputs()
    assert not any(name.startswith("branches.left") for name in select_bayesian(network, None))
    with pytest.raises(ValueError, match="frozen"):
        select_bayesian(network, "branches.left")
    with pytest.raises(ValueError, match="no trainable parameter"):
        select_bayesian(network.requires_grad_(False), None)
    with pytest.raises(ValueError, match="selects no"):
        select_bayesian(LSTMNet(), lambda name, value: False)


# --- Tables ---------------------------------------------------------------------------------


@pytest.mark.parametrize("trainable", [True, False])
def test_table_keeps_names_with_dots(trainable: bool):
    tensors = {"a.weight": torch.randn(2, 3), "b": torch.tensor(1.0)}
    table = TensorTable(tensors, trainable=trainable)
    assert list(table()) == ["a.weight", "b"]
    assert all(torch.equal(table()[name], value) for name, value in tensors.items())
    assert list(table.state_dict()) == ["a/weight", "b"]
    assert len(list(table.parameters())) == (2 if trainable else 0)
    assert table.double()()["b"].dtype == torch.float64
