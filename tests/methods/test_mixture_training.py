"""Members of a mixture are trained as if each were alone, with statistics of their own."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.likelihoods import Categorical, Gaussian
from bbh.methods import Sampling, mixture
from bbh.objective import negative_log_likelihood
from methods.mixed import MAP, MEMBERS, images, labels, trained
from scenarios import BatchNormNet, SmallLeNet, dropout_mlp


def separate(whole: bbh.Posterior, member: Callable, network: nn.Module) -> list[bbh.Posterior]:
    """The members of a mixture, each as a posterior by itself."""
    singles = [member(network, whole.likelihood) for _ in whole.weights.members]
    for single, weights in zip(singles, whole.weights.members, strict=True):
        single.replace_weights(weights)
        single.train(whole.training)
    return singles


@pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS.keys())
@pytest.mark.parametrize("make", [SmallLeNet, BatchNormNet])
def test_a_members_gradient_is_its_share_of_the_one_it_has_alone(member, make):
    network = make().double()
    whole = mixture(network, Categorical(), method=member, num_members=3).train()
    singles = separate(whole, member, network)
    batch = bbh.batches.as_batch((images().double(), labels()))
    torch.manual_seed(5)
    bbh.free_energy(whole, batch, num_data=50).total.backward()
    torch.manual_seed(5)
    drawn = [one.sample(one.samples_per_step) for one in whole.weights.members]
    for single, draws in zip(singles, drawn, strict=True):
        cost = single.weights.cost(draws, single.prior)
        used = draws.take(slice(single.weights.likelihood_samples or draws.num_samples))
        nll = negative_log_likelihood(single, batch, used)
        parameters = list(single.weights.parameters())
        alone = torch.autograd.grad(nll + cost.complexity / 50, parameters)
        for parameter, gradient in zip(parameters, alone, strict=True):
            torch.testing.assert_close(parameter.grad, gradient / 3)


@pytest.mark.parametrize("num_samples", [None, 4])
def test_points_are_trained_exactly_as_if_each_were_alone(num_samples):
    """With batch norm, whose statistics each member has for itself."""
    starts = [BatchNormNet(), BatchNormNet()]
    data = TensorDataset(images(30), labels(30))

    def fitted(posterior: bbh.Posterior, members: int) -> bbh.Posterior:
        torch.manual_seed(2)
        loader = DataLoader(data, batch_size=10, shuffle=True)
        bbh.fit(
            posterior,
            loader,
            epochs=2,
            # The gradient is divided by the number of members, and by 2 that is exact.
            optimizer=partial(torch.optim.Adam, lr=0.01, eps=1e-8 / members),
            num_samples=num_samples and num_samples // 2 * members,
            progress=False,
        )
        return posterior

    others = iter(starts[1:])
    arguments = {"method": MAP, "num_members": 2, "make_network": others.__next__}
    whole = fitted(mixture(starts[0], Categorical(), **arguments), 2)
    alone = [fitted(MAP(one, Categorical()), 1) for one in starts]
    together = whole.sample(2).apart()
    for draw, single in zip(together, alone, strict=True):
        (expected,) = single.sample(1).apart()
        expected |= {n: v for n, v in single.constants().items() if n in draw}
        assert draw.keys() >= {"conv.weight", "norm.weight", "norm.running_var"}
        for name, value in expected.items():
            assert torch.equal(draw[name], value), name
    assert not torch.equal(together[0]["norm.running_var"], together[1]["norm.running_var"])
    inputs = images(5)
    probabilities = [bbh.predict(one, inputs).mean for one in alone]
    found = bbh.predict(whole, inputs, 100)
    assert found.num_samples == 2
    torch.testing.assert_close(found.mean, (probabilities[0] + probabilities[1]) / 2)


NEARLY_POINTS = {
    "masks": partial(bbh.methods.mc_dropout, rate=1e-9),
    "local": partial(bbh.methods.bayes_by_backprop, sampling=Sampling.LOCAL, initial_scale=1e-9),
    "flipout": partial(
        bbh.methods.bayes_by_backprop, sampling=Sampling.FLIPOUT, initial_scale=1e-9
    ),
}


@pytest.mark.parametrize("member", NEARLY_POINTS.values(), ids=NEARLY_POINTS.keys())
def test_weights_for_single_examples_are_those_of_the_draws_own_member(member):
    starts = [SmallLeNet(), SmallLeNet()]
    others = iter(starts[1:])
    posterior = mixture(
        starts[0], Categorical(), method=member, num_members=2, make_network=others.__next__
    ).train()
    draws, inputs = posterior.sample(4), images()
    assert draws.vary_by_example
    for some, numbers in ((draws, (0, 1, 0, 1)), (draws.take(slice(1, 3)), (1, 0))):
        for outputs, number in zip(posterior(inputs, some), numbers, strict=True):
            torch.testing.assert_close(outputs, starts[number](inputs), rtol=1e-4, atol=1e-5)


def test_dropout_layers_of_the_network_stay_on():
    posterior = mixture(dropout_mlp(), Categorical(), method=bbh.methods.mc_dropout, num_members=2)
    assert posterior.always_on == ("2",)
    predictive = bbh.predict(posterior, torch.randn(3, 4), 40, keep_draws=True)
    assert predictive.draws.shape == (40, 3, 3)
    assert (predictive.draws[::2].std(0) > 0).all()
    assert (predictive.draws[1::2].std(0) > 0).all()


@pytest.mark.slow
def test_hypernets_are_trained_like_one_alone():
    """In distribution: a member draws other numbers than one alone does."""
    inputs = torch.linspace(-1, 1, 20).unsqueeze(1)
    network, likelihood = nn.Linear(1, 1), Gaussian(0.5)

    def slopes(posterior: bbh.Posterior) -> Tensor:
        trained(posterior, (inputs, 2 * inputs), steps=1500, rate=0.003)
        return posterior.weights.sample(3000)["weight"].flatten().detach()

    alone = slopes(bbh.methods.bayes_by_hypernet(network, likelihood))
    members = slopes(mixture(network, likelihood, num_members=3)).view(-1, 3)
    # The exact posterior's standard deviation is 0.18 where the prior is wide.
    for one in (alone, *members.T):
        assert one.mean().item() == pytest.approx(2.0, abs=0.15)
        assert 0.1 < one.std().item() < 0.3


def test_learned_noise_is_shared():
    posterior = mixture(nn.Linear(1, 1), Gaussian(), method=MAP, num_members=3)
    assert len(list(posterior.likelihood.parameters())) == 1
    batch = (torch.randn(6, 1), torch.randn(6, 1))
    bbh.free_energy(posterior, batch, num_data=6).total.backward()
    assert next(posterior.likelihood.parameters()).grad is not None


# --- Batch norm ------------------------------------------------------------------------------


def test_every_draw_of_a_distribution_has_statistics_of_its_own():
    network = BatchNormNet()
    whole = mixture(network, Categorical(), num_members=2)
    bbh.fit(whole, DataLoader(TensorDataset(images(), labels()), 6), epochs=1, progress=False)
    assert whole.needs_reference()
    draws = whole.sample(4)
    assert draws["norm.running_var"].shape == (4, 4)
    member = bbh.methods.bayes_by_hypernet
    (single, _) = separate(whole, member, network)
    single.reference = whole.reference
    own = draws.members[0]
    expected = single.eval().with_statistics(own)
    torch.testing.assert_close(draws["norm.running_var"][::2], expected["norm.running_var"])
    refreshed = bbh.refresh_batch_norm(whole, [(images(), labels())], 5)
    assert refreshed["norm.running_mean"].shape == (5, 4)
    assert torch.isfinite(bbh.predict(whole, images(), samples=refreshed).mean).all()


def test_a_frozen_part_is_the_networks_own_for_all_members():
    network = BatchNormNet()
    network.norm.running_mean.fill_(3.0)
    posterior = mixture(
        network, Categorical(), method=MAP, num_members=3, bayesian="head", freeze_rest=True
    )
    loader = DataLoader(TensorDataset(images(), labels()), 6)
    bbh.fit(posterior, loader, epochs=2, progress=False)
    assert posterior.sample(3).keys() == {"head.weight", "head.bias"}
    for name in ("conv.weight", "norm.running_mean", "norm.weight"):
        constants = posterior.frozen() | posterior.constants()
        assert torch.equal(constants[name], network.state_dict()[name])
    heads = posterior.sample(3)["head.weight"]
    assert not torch.equal(heads[0], heads[1])
    with bbh.cached_features(posterior, loader) as (features,):
        bbh.fit(posterior, features, epochs=1, progress=False)
