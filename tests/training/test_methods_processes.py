"""Every method in two processes: one step follows the mean gradient of what each one draws."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bbh
from scenarios import METHODS, mlp
from training.small import assert_same_state, dataset, fit, sgd
from training.together import together

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="needs torch.distributed"
)
EXAMPLES = 6


def one_step(name, rank, fabric=None):
    """Parameters after one step of gradient descent with the random numbers of this process."""
    torch.manual_seed(0)
    posterior = METHODS[name](mlp(), bbh.likelihoods.Categorical())
    torch.manual_seed(10 + rank)
    inputs, targets = dataset(EXAMPLES).tensors
    share = slice(rank, None, 2) if fabric is None else slice(None)
    loader = DataLoader(TensorDataset(inputs[share], targets[share]), batch_size=EXAMPLES // 2)
    options = {"num_data": EXAMPLES, "optimizer": sgd(0.1), "beta": 1.0, "compare": False}
    history = fit(posterior, loader, 1, fabric=fabric, **options)
    assert history[-1].step == 1
    return {name: value.detach() for name, value in posterior.named_parameters()}


def step_together(fabric):
    return {name: one_step(name, fabric.global_rank, fabric) for name in METHODS}


def test_a_step_of_two_processes_is_the_mean_of_their_steps():
    """A step of gradient descent is linear in the gradient, also where draws are random."""
    first, second = together(step_together)
    for name in METHODS:
        assert_same_state(first[name], second[name])
        own, other = one_step(name, 0), one_step(name, 1)
        assert any(not torch.equal(own[key], other[key]) for key in own)
        for key, value in first[name].items():
            torch.testing.assert_close(value, (own[key] + other[key]) / 2, rtol=1e-4, atol=1e-5)
