"""What building and loading compute: counted, not timed."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import bbh
from bbh.generators import FromNetwork

NETWORK = (200, 300)
METHODS = {
    "layerwise": lambda network: make(network, generator=bbh.generators.LayerWise((8, 16))),
    "sliced": lambda network: make(network, generator=bbh.generators.Sliced((8, 16))),
    "low_rank": lambda network: make(network, generator=bbh.generators.LowRank()),
    "directions": lambda network: make(network, generator=bbh.generators.Directions()),
    "ensemble": lambda network: bbh.methods.deep_ensemble(network, bbh.likelihoods.Categorical()),
}


def make(network, **settings):
    return bbh.methods.bayes_by_hypernet(network, bbh.likelihoods.Categorical(), **settings)


class RandomFills(TorchDispatchMode):
    """Counts random numbers that are written into tensors, on the CPU and elsewhere."""

    def __init__(self):
        super().__init__()
        self.on_cpu = self.elsewhere = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            if result.device.type == "cpu":
                self.on_cpu += result.numel()
            else:
                self.elsewhere += result.numel()
        return result


@pytest.mark.parametrize("method", METHODS)
def test_loading_draws_no_weights(method, tmp_path):
    path = tmp_path / "posterior.safetensors"
    bbh.save(METHODS[method](nn.Linear(*NETWORK)), path)
    network = nn.Linear(*NETWORK)
    with RandomFills() as fills:
        posterior = bbh.load(path, network)
    # Noise to measure a trunk with, at most, and rows and columns of a low rank.
    assert fills.on_cpu + fills.elsewhere < 20_000 < sum(p.numel() for p in posterior.parameters())


def test_loading_does_not_initialise_a_generator(tmp_path, monkeypatch):
    path = tmp_path / "posterior.safetensors"
    bbh.save(METHODS["layerwise"](nn.Linear(*NETWORK)), path)
    calls = []
    monkeypatch.setattr(FromNetwork, "apply", lambda *_: calls.append("applied"))
    bbh.load(path, nn.Linear(*NETWORK))
    assert not calls
    METHODS["layerwise"](nn.Linear(*NETWORK))
    assert calls == ["applied", "applied"]  # a weight and a bias


@pytest.mark.parametrize("method", ["low_rank", "directions"])
def test_small_generators_are_built_on_the_weights_device(method):
    """On "meta", which stands for every device but the CPU: it does not compute."""
    with torch.device("meta"):
        network = nn.Linear(*NETWORK)
    with RandomFills() as fills:
        posterior = METHODS[method](network)
    assert {one.device.type for one in posterior.weights.parameters()} == {"meta"}
    assert fills.on_cpu < 20_000 < network.weight.numel()
