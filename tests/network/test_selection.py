"""Which parameters get a distribution, and how many inputs they sum over."""

import pytest
import torch
from torch import nn

import bbh
from bbh.network import fan_in, select_bayesian, trainable_parameters
from bbh.samples import Shapes
from scenarios import (
    METHODS,
    BatchNormNet,
    LeNet,
    LSTMNet,
    SmallLeNet,
    TiedNet,
    TransformerNet,
    TwoInputs,
)

Categorical = bbh.likelihoods.Categorical

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


class TestPosterior:
    """What ``bayesian=`` selects varies from draw to draw; the rest are the network's own."""

    def chosen(self, network, bayesian, method=bbh.methods.bayes_by_backprop):
        """Which parameters differ from draw to draw; the rest must be the network's own."""
        posterior = method(network, Categorical(), bayesian=bayesian).eval()
        samples = posterior.sample(3)
        varying = {name for name, value in samples.items() if not torch.equal(value[0], value[1])}
        for name, value in network.named_parameters():
            if name not in varying and value.requires_grad:
                assert torch.equal(samples[name][2], value)
        return varying

    @pytest.mark.parametrize(
        ("bayesian", "expected"),
        [
            ("fc2.weight", {"fc2.weight"}),
            (["fc2.weight", "fc1.bias"], {"fc2.weight", "fc1.bias"}),
            ("fc2", {"fc2.weight", "fc2.bias"}),
            ("*.bias", {"conv1.bias", "conv2.bias", "fc1.bias", "fc2.bias"}),
            (["conv?.weight"], {"conv1.weight", "conv2.weight"}),
            (lambda name, value: value.dim() == 4, {"conv1.weight", "conv2.weight"}),
            (("fc2.*", "fc2.bias"), {"fc2.weight", "fc2.bias"}),
        ],
        ids=["name", "names", "module", "glob", "question mark", "predicate", "overlap"],
    )
    def test_ways_to_say_which(self, bayesian, expected):
        assert self.chosen(SmallLeNet(), bayesian) == expected
        assert self.chosen(SmallLeNet(), bayesian, METHODS["bayes_by_hypernet"]) == expected

    def test_default_leaves_normalisation_layers_out(self):
        expected = {"conv.weight", "conv.bias", "head.weight", "head.bias"}
        assert self.chosen(BatchNormNet(), None) == expected
        assert self.chosen(BatchNormNet(), "norm") == {"norm.weight", "norm.bias"}

    def test_tied_weights_answer_to_both_names(self):
        for name in ("embedding.weight", "output.weight", "output"):
            expected = {"embedding.weight"} | ({"output.bias"} if name == "output" else set())
            assert self.chosen(TiedNet(), name) == expected

    def test_typing_error_is_met_with_a_suggestion(self):
        with pytest.raises(ValueError, match=r"'fc1\.wieght' matches no.*mean 'fc1\.weight'"):
            self.chosen(SmallLeNet(), "fc1.wieght")
        with pytest.raises(ValueError, match=r"matches no parameter.*conv1\.weight"):
            self.chosen(SmallLeNet(), ["fc1", "something.else.entirely"])

    def test_frozen_parameters_cannot_be_chosen(self):
        with pytest.raises(ValueError, match=r"only frozen.*requires_grad_\(True\)"):
            self.chosen(TwoInputs(), "branches.left")
        assert self.chosen(TwoInputs(), "branches") == {
            "branches.right.0.weight",
            "branches.right.0.bias",
        }

    def test_nothing_chosen(self):
        for nothing in ([], lambda name, value: False):
            with pytest.raises(ValueError, match="selects no trainable parameter"):
                self.chosen(SmallLeNet(), nothing)

    def test_only_the_chosen_know_the_prior(self):
        network, prior = nn.Linear(4, 3), bbh.priors.Normal(0.5)
        posterior = bbh.methods.maximum_a_posteriori(
            network, Categorical(), prior, bayesian="weight"
        )
        cost = posterior.weights.cost(posterior.sample(1), prior).complexity
        expected = -torch.distributions.Normal(0.0, 0.5).log_prob(network.weight).sum()
        torch.testing.assert_close(cost, expected)
