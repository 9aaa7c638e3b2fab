"""Which parameters get a distribution, and how many inputs they sum over."""

import pytest
import torch
from torch import nn

from bbh.network import fan_in, select_bayesian, trainable_parameters
from scenarios import BatchNormNet, LeNet, LSTMNet, TiedNet, TransformerNet, TwoInputs

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
