"""A posterior of which everything is known."""

import pytest
import torch
from torch import nn

import bbh
from bbh.distribution import Cost, WeightDistribution

# Each weight as a sum of two independent coins, ±1: the kernel of a convolution, then its bias.
COINS = torch.tensor([[1.0, 0], [0, 1], [1, 1], [-1, 0], [0, 3]])


class Coins(WeightDistribution):
    """Two fair coins in turn, so that moments of the draws are those of the distribution."""

    def __init__(self):
        super().__init__()
        self.shapes = {"weight": torch.Size([1, 1, 2, 2]), "bias": torch.Size([1])}
        self.loc = nn.Parameter(torch.tensor([5.0, -1, 0, 2, 0]))
        self.drawn = 0

    def sample(self, num_samples):
        turn = torch.arange(self.drawn, self.drawn + num_samples)
        self.drawn += num_samples
        coins = torch.stack([turn % 2, turn // 2 % 2], dim=1) * 2.0 - 1
        return bbh.Samples(bbh.samples.unflatten(self.loc + coins @ COINS.T, self.shapes))

    def cost(self, samples, prior):
        return Cost(torch.zeros(()))


@pytest.fixture
def coins() -> bbh.Posterior:
    return bbh.Posterior(
        nn.Conv2d(1, 1, 2), Coins(), bbh.priors.Normal(1.0), bbh.likelihoods.Gaussian(1.0)
    )
