"""The default prior of recurrent layers, which are applied as often as there are time steps."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh


class LastState(nn.Module):
    """A recurrent layer, and a linear one on its last state."""

    def __init__(self, kind: type[nn.Module], inputs: int, width: int, outputs: int):
        super().__init__()
        self.layer = kind(inputs, width, batch_first=True)
        self.head = nn.Linear(width, outputs)

    def forward(self, series):
        return self.head(self.layer(series)[0][:, -1])


def test_hidden_kernels_have_a_scale_of_their_own():
    shapes = {
        name: value.shape
        for layer in (
            nn.LSTM(5, 8, num_layers=2, bidirectional=True, proj_size=3),
            nn.GRUCell(5, 8),
        )
        for name, value in layer.named_parameters()
    }
    prior = bbh.priors.FanIn(5.0, recurrent=1.0).for_shapes(shapes)
    for name in shapes:
        scale = 1.0 if name.startswith(("weight_hh", "bias_hh", "weight_hr")) else 5.0
        assert prior.normal(name).scale == pytest.approx(scale / math.sqrt(prior.fan_ins[name]))
    assert {prior.fan_ins["weight_hh_l0"], prior.fan_ins["weight_hr_l0"]} == {3, 8}


def test_without_one_all_kernels_have_the_same():
    shapes = {"layer.weight_hh_l0": torch.Size([4, 4]), "head.weight": torch.Size([2, 4])}
    prior = bbh.priors.FanIn(3.0).for_shapes(shapes)
    assert prior.normal("layer.weight_hh_l0") == prior.normal("head.weight")


def test_a_hidden_kernel_of_the_default_prior_keeps_the_size_of_states():
    """By the circular law, the largest eigenvalue of a large kernel is the scale."""
    torch.manual_seed(0)
    network = LastState(nn.RNN, 3, 400, 2)
    prior = bbh.methods.bayes_by_hypernet(network, bbh.likelihoods.Categorical()).prior
    assert prior.scale == 5.0
    shapes = {name: value.shape for name, value in network.named_parameters()}
    kernel = prior.sample_like({"any": torch.zeros(1)}, shapes, 1)["layer.weight_hh_l0"][0]
    assert torch.linalg.eigvals(kernel).abs().max().item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("recurrent", [0.0, -1.0, math.nan])
def test_impossible_scales_are_refused(recurrent):
    with pytest.raises(ValueError, match="recurrent"):
        bbh.priors.FanIn(1.0, recurrent=recurrent)


@pytest.mark.slow
def test_a_plain_recurrent_network_learns_with_defaults():
    """A wrong scale is applied 24 times here; guessing is wrong on three of four."""
    torch.manual_seed(0)

    def waves(number):
        labels = torch.randint(4, (number,))
        phase = 6.28 * (torch.rand(number, 1) + (labels + 1.5)[:, None] * torch.linspace(0, 1, 24))
        return (phase.sin() + 0.3 * torch.randn(number, 24)).unsqueeze(-1), labels

    inputs, labels = waves(300)
    posterior = bbh.methods.bayes_by_hypernet(
        LastState(nn.RNN, 1, 32, 4), bbh.likelihoods.Categorical()
    )
    loader = DataLoader(TensorDataset(*waves(1000)), batch_size=50, shuffle=True)
    bbh.fit(posterior, loader, epochs=25, progress=False)
    error = bbh.metrics.error(bbh.predict(posterior, inputs, 50).mean, labels)
    assert error < 20
