"""Members of mixtures, and inputs, for tests of mixtures."""

from functools import partial

import torch
from torch import Tensor

import bbh
from bbh.methods import Sampling
from scenarios import METHODS

MAP = bbh.methods.maximum_a_posteriori
CRITIC = partial(
    bbh.methods.bayes_by_backprop, divergence=bbh.divergences.Adversarial(), num_samples=2
)
# Methods that draw random numbers in ``sample`` only.
MEMBERS = {
    "multiplicative_normalizing_flows": partial(
        bbh.methods.multiplicative_normalizing_flows, sampling=Sampling.WEIGHTS
    ),
    **{
        name: METHODS[name]
        for name in (
            "maximum_a_posteriori",
            "deep_ensemble",
            "bayes_by_backprop",
            "bayes_by_hypernet",
            "stochastic_weight_averaging",
            "mixture",
        )
    },
}


def images(number: int = 12) -> Tensor:
    return torch.randn(number, 1, 6, 6)


def labels(number: int = 12) -> Tensor:
    return torch.arange(number) % 3


def trained(posterior: bbh.Posterior, batch: tuple, steps: int, rate: float) -> None:
    optimizer = torch.optim.Adam(posterior.parameters(), lr=rate)
    step = bbh.TrainingStep(posterior, optimizer, num_data=len(batch[0]))
    for _ in range(steps):
        step(batch)
