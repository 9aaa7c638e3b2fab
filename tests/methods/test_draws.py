"""The cost of a draw is a function of the draw, for every method and divergence.

Divergences that compare with samples of the prior, or train a critic, are random by themselves.
"""

import pickle
from functools import partial

import pytest
import torch
from torch import nn

import bbh
from bbh import divergences as d
from bbh.methods import FlowKind, Sampling
from scenarios import METHODS, BatchNormNet, SmallLeNet, mlp

VARIANTS = {
    **METHODS,
    "planar flows": partial(
        bbh.methods.multiplicative_normalizing_flows, flow=FlowKind.PLANAR, num_flows=1
    ),
    "flows around weights": partial(
        bbh.methods.multiplicative_normalizing_flows, sampling=Sampling.WEIGHTS
    ),
    "local": partial(bbh.methods.bayes_by_backprop, sampling=Sampling.LOCAL),
    "flipout": partial(bbh.methods.bayes_by_backprop, sampling=Sampling.FLIPOUT),
    "backprop, entropy": partial(
        bbh.methods.bayes_by_backprop, divergence=d.NearestNeighbourEntropy(1)
    ),
    "backprop, Laplace": partial(bbh.methods.bayes_by_backprop, prior=bbh.priors.Laplace(0.3)),
    "hypernet, k = 1": partial(
        bbh.methods.bayes_by_hypernet, divergence=d.NearestNeighbourEntropy(1), num_samples=3
    ),
    "hypernet, joint entropy": partial(
        bbh.methods.bayes_by_hypernet, divergence=d.JointEntropy(), noise=bbh.GaussianNoise(2)
    ),
    "hypernet, shared joint entropy": partial(
        bbh.methods.bayes_by_hypernet,
        prior=bbh.priors.Laplace(0.3),
        divergence=d.JointEntropy(),
        noise=bbh.GaussianNoise(2, shared=True),
    ),
    "part of it": partial(bbh.methods.bayes_by_hypernet, bayesian=lambda name, _: "bias" in name),
    "single generator": partial(
        bbh.methods.bayes_by_hypernet, generator=bbh.generators.Single(hidden=(8,))
    ),
}
over_variants = pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS.keys())


def made(method, network: nn.Module) -> bbh.Posterior:
    return method(network, bbh.likelihoods.Categorical())


def complexity(posterior: bbh.Posterior, draws: bbh.Samples) -> float:
    return posterior.weights.cost(draws, posterior.prior).complexity.item()


@over_variants
@pytest.mark.parametrize("make", [mlp, SmallLeNet, BatchNormNet])
@pytest.mark.parametrize("training", [True, False])
def test_asked_twice_it_is_the_same_number(method, make, training):
    posterior = made(method, make()).train(training)
    draws = posterior.sample(6)
    # Taken, moved and detached before anybody has asked, and again afterwards.
    ways = [
        lambda: draws,
        lambda: draws.take(slice(1, 6)),
        lambda: draws.take(slice(1, 6)).to("cpu"),
        lambda: draws.detach(),
        lambda: pickle.loads(pickle.dumps(draws.detach())),
    ]
    first = [complexity(posterior, way()) for way in ways]
    again = [complexity(posterior, way()) for way in ways]
    assert first == again
    whole, part, moved, detached, stored = first
    assert whole == pytest.approx(detached)
    assert whole == pytest.approx(stored)
    assert part == pytest.approx(moved)


@pytest.mark.parametrize("kind", list(FlowKind))
def test_a_flows_bound_is_the_mean_over_its_draws(kind):
    posterior = made(
        partial(bbh.methods.multiplicative_normalizing_flows, flow=kind), SmallLeNet()
    ).double()
    draws = posterior.sample(4)
    whole = complexity(posterior, draws)
    single = [complexity(posterior, draws.take(slice(i, i + 1))) for i in range(4)]
    assert whole == pytest.approx(sum(single) / 4)
    # They differ: each is charged for its own z.
    assert max(single) - min(single) > 1e-3


@pytest.mark.parametrize("method", [bbh.methods.bayes_by_backprop, bbh.methods.bayes_by_hypernet])
def test_the_draws_that_predict_are_those_that_are_charged(method):
    posterior = made(method, mlp())
    batch = (torch.randn(6, 4), torch.arange(6) % 3)
    torch.manual_seed(1)
    energy = bbh.free_energy(posterior, batch, num_data=6)
    torch.manual_seed(1)
    draws = posterior.sample(posterior.weights.samples_per_step)
    assert complexity(posterior, draws) == energy.complexity.item()
    outputs = posterior(batch[0], draws.take(slice(posterior.weights.likelihood_samples)))
    expected = nn.functional.cross_entropy(outputs.flatten(0, 1), batch[1].repeat(len(outputs)))
    torch.testing.assert_close(energy.nll, expected)
