"""freeze_rest: what is not Bayesian stays as it is in a trained network."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.methods import registered
from scenarios import over_methods


class Backbone(nn.Module):
    """Batch norm, a dropout layer, and a dropout that only the root's mode switches."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(F.dropout(self.body(inputs), 0.5, training=self.training))


def trained_backbone() -> Backbone:
    network = Backbone()
    with torch.no_grad():
        network(torch.randn(64, 4) + 2)  # statistics that are not the initial ones
    return network


def loader() -> DataLoader[Any]:
    data = TensorDataset(torch.randn(24, 4), torch.randint(0, 3, (24,)))
    return DataLoader(data, batch_size=8, shuffle=True)


def fit(posterior: bbh.Posterior[Any], **options: Any) -> None:
    bbh.fit(posterior, loader(), epochs=2, learning_rate=0.05, progress=False, **options)


@pytest.mark.parametrize("mode", [True, False], ids=["training", "eval"])
@over_methods
def test_training_changes_the_bayesian_part_only(method, mode):
    network = trained_backbone().train(mode)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    posterior = method(network, bbh.likelihoods.Categorical(), bayesian="head", freeze_rest=True)
    assert posterior.weights.shapes.keys() == {"head.weight", "head.bias"}
    start = [value.detach().clone() for value in posterior.parameters()]
    fit(posterior)
    for value, old in zip(posterior.parameters(), start, strict=True):
        assert not torch.equal(value, old)
    constants = posterior.frozen() | posterior.constants()
    for name, value in constants.items():
        assert torch.equal(value, before[name])
    assert constants.keys() | posterior.weights.shapes.keys() == before.keys()
    # The network that was passed in is as it was.
    assert all(value.requires_grad for value in network.parameters())
    assert all(module.training == mode for module in network.modules())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_batch_norm_and_dropout_are_off_in_training():
    network = trained_backbone()
    posterior = bbh.methods.maximum_a_posteriori(
        network, bbh.likelihoods.Categorical(), bayesian="head", freeze_rest=True
    )
    inputs = torch.randn(10, 4)
    outputs = posterior.train()(inputs, posterior.sample(1))[0]
    torch.testing.assert_close(outputs, network.eval()(inputs))


def test_dropout_as_a_method_stays_on():
    posterior = bbh.methods.mc_dropout(
        trained_backbone(), bbh.likelihoods.Categorical(), bayesian="head", freeze_rest=True
    )
    inputs, samples = torch.randn(10, 4), posterior.eval().sample(1)
    assert not torch.equal(posterior(inputs, samples), posterior(inputs, samples))


def test_by_default_normalisation_layers_are_what_is_frozen():
    network = trained_backbone()
    for make_network in (None, Backbone):
        posterior = bbh.methods.deep_ensemble(
            network,
            bbh.likelihoods.Categorical(),
            num_members=2,
            make_network=make_network,
            freeze_rest=True,
        )
        fit(posterior)
        constants, own = posterior.frozen() | posterior.constants(), network.state_dict()
        assert constants.keys() == {name for name in own if name.startswith("body.1.")}
        assert all(torch.equal(value, own[name]) for name, value in constants.items())


@over_methods
def test_a_file_keeps_the_rest_frozen(method, tmp_path):
    network = trained_backbone()
    posterior = method(network, bbh.likelihoods.Categorical(), bayesian="head", freeze_rest=True)
    fit(posterior)
    bbh.save(posterior, tmp_path / "posterior")
    again = bbh.load(tmp_path / "posterior", network)
    inputs = torch.randn(5, 4)
    predictions: list[Tensor] = []
    for one in (posterior, again):
        torch.manual_seed(3)
        predictions.append(bbh.predict(one, inputs, 4).mean)
    assert torch.equal(*predictions)
    fit(again)
    for one, other in ((posterior.constants, again.constants), (posterior.frozen, again.frozen)):
        for name, value in one().items():
            assert torch.equal(other()[name], value)


def test_every_method_says_what_it_does():
    for method in registered().values():
        assert "freeze_rest: Keep everything else" in (method.__doc__ or "")
