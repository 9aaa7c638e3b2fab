"""Numbers of threads: the same number gives the same bits."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from scenarios import METHODS
from training.small import assert_same_state, copied, fit


@pytest.fixture
def _threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("name", ["bayes_by_backprop", "bayes_by_hypernet"])
def test_the_same_number_gives_the_same_bits(name):
    """With layers that PyTorch divides among threads."""
    data = TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,)))
    network = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10))
    states = []
    for _ in range(2):
        torch.manual_seed(1)
        posterior = METHODS[name](network, bbh.likelihoods.Categorical())
        fit(posterior, DataLoader(data, batch_size=128, shuffle=True), 1, compare=False)
        states.append(copied(posterior))
    assert_same_state(*states)
