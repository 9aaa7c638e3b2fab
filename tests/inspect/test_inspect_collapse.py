"""Signs of collapse: there on posteriors that collapsed, and only there."""

import pytest
import torch
from torch import nn

import bbh
from bbh.inspect import look
from bbh.methods import Particles
from scenarios import SmallLeNet, mlp

INPUTS = 3 * torch.randn(50, 4, generator=torch.Generator().manual_seed(1))


def names(looked):
    return [sign.name for sign in looked.signs]


def hypernet(dim, shared):
    return bbh.methods.bayes_by_hypernet(
        mlp(),
        bbh.likelihoods.Categorical(),
        generator=bbh.generators.LayerWise(
            hidden=(32, 32), initialization=bbh.generators.FromNetwork(0.5)
        ),
        noise=bbh.GaussianNoise(dim, shared),
    )


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dim", [1, 8])
def test_a_healthy_generator_shows_none(dim, shared):
    looked = look(hypernet(dim, shared), INPUTS, num_samples=300)
    assert looked.diversity.kl > 0.01
    assert looked.signs == ()
    assert "no sign of collapse" in str(looked)


@pytest.mark.parametrize("shared", [True, False])
def test_noise_that_a_generator_ignores(shared):
    posterior = hypernet(8, shared)
    with torch.no_grad():
        for one in posterior.weights.generator.hypernetworks:
            one.layers[0].weight[:, 1:8] = 0
    looked = look(posterior, INPUTS, num_samples=300)
    assert names(looked) == ["unused noise"]
    (sign,) = looked.signs
    assert f"{1 if shared else 4} of {1 if shared else 4} generated parts" in sign.seen
    assert "for 8" in sign.seen


def test_weights_that_hardly_vary():
    posterior = bbh.methods.bayes_by_backprop(
        mlp(), bbh.likelihoods.Categorical(), initial_scale=1e-6
    )
    looked = look(posterior, INPUTS, num_samples=100)
    assert names(looked) == ["no spread", "one function"]
    assert "4 of 4 tensors" in looked.signs[0].seen
    assert "KL" in looked.signs[1].seen


def test_one_layer_that_hardly_varies_is_named():
    posterior = bbh.methods.bayes_by_backprop(SmallLeNet(), bbh.likelihoods.Categorical())
    with torch.no_grad():
        for name, value in posterior.weights.named_parameters():
            if "scale" in name and "fc1/weight" in name:
                value -= 12.0
    looked = look(posterior, num_samples=100)
    assert names(looked) == ["no spread"]
    assert "1 of 8 tensors" in looked.signs[0].seen
    assert "fc1.weight by" in looked.signs[0].seen


def test_functions_that_agree_though_weights_do_not():
    # A constant added to all logits changes no probability.
    network = nn.Linear(4, 2)
    members = {
        "weight": torch.randn(3, 1, 4).expand(3, 2, 4),
        "bias": torch.randn(3, 1).expand(3, 2),
    }
    posterior = bbh.Posterior(
        network, Particles(members), bbh.priors.Normal(1.0), bbh.likelihoods.Categorical()
    )
    looked = look(posterior, INPUTS)
    assert names(looked) == ["one function"]


def test_members_that_are_all_the_same():
    network = nn.Linear(4, 2)
    members = {"weight": torch.ones(5, 2, 4), "bias": torch.zeros(5, 2)}
    posterior = bbh.Posterior(
        network, Particles(members), bbh.priors.Normal(1.0), bbh.likelihoods.Categorical()
    )
    looked = look(posterior, INPUTS)
    assert names(looked) == ["all draws are equal"]
    assert looked.numbers()["effective_dimension"]["estimate"] is None
    assert looked.numbers()["bimodality"]["share_below_0.05"] is None
    assert looked.correlation.strong_share is None
    assert "no weight varies" in str(looked)
