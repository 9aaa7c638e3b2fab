"""The objective by hand: its terms, its scale, its schedules."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bbh
from bbh import Cosine, Linear, free_energy
from bbh.likelihoods import Categorical, Gaussian
from bbh.methods import bayes_by_backprop, bayes_by_hypernet, maximum_a_posteriori
from bbh.objective import negative_log_likelihood
from bbh.priors import Normal

NUM_DATA = 50


def batch(number: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(number, 3), torch.randint(0, 4, (number,))


def point() -> tuple[bbh.Posterior, nn.Linear]:
    network = nn.Linear(3, 4)
    return maximum_a_posteriori(network, Categorical(), Normal(0.5)), network


# --- Annealing ------------------------------------------------------------------------------


def test_linear_annealing_is_the_papers_on_mnist():
    # β = 0 for epochs 0 to 4, a line to 1 over epochs 5 to 19, 550 steps per epoch.
    schedule = Linear(5, 20)
    steps = {0: 0.0, 2749: 0.0, 2750: 0.0, 2751: 1 / 8250, 6875: 0.5, 11_000: 1.0, 55_000: 1.0}
    for step, beta in steps.items():
        assert schedule(step / 550) == pytest.approx(beta, abs=1e-12)


def test_cosine_annealing_is_flat_at_both_ends():
    schedule = Cosine(2, 6)
    assert [schedule(epoch) for epoch in (0, 2, 6, 10)] == pytest.approx([0, 0, 1, 1])
    assert schedule(4) == pytest.approx(0.5)
    assert schedule(3) == pytest.approx(0.5 - 0.5 * math.sqrt(0.5))


def test_impossible_schedules():
    for kind in (Linear, Cosine):
        with pytest.raises(ValueError, match="start before it ends"):
            kind(5, 5)
        with pytest.raises(ValueError, match="start before it ends"):
            kind(-1, 5)


# --- The terms ------------------------------------------------------------------------------


def test_free_energy_by_hand():
    posterior, network = point()
    inputs, targets = batch()
    energy = free_energy(
        posterior, (inputs, targets), num_data=NUM_DATA, beta=0.25, temperature=0.5
    )
    nll = F.cross_entropy(network(inputs), targets)
    weights = torch.cat([network.weight.flatten(), network.bias])
    complexity = 0.5 * (weights / 0.5).square().sum() + 16 * math.log(0.5 * math.sqrt(2 * math.pi))
    torch.testing.assert_close(energy.nll, nll)
    torch.testing.assert_close(energy.complexity, complexity)
    assert energy.auxiliary == 0
    torch.testing.assert_close(energy.total, nll + 0.5 * 0.25 / NUM_DATA * complexity)


def test_free_energy_of_a_gaussian_posterior_by_hand():
    network = nn.Linear(3, 4)
    posterior = bayes_by_backprop(network, Categorical(), Normal(), initial_scale=0.2)
    inputs, targets = batch()
    torch.manual_seed(5)
    energy = free_energy(posterior, (inputs, targets), num_data=NUM_DATA, num_samples=3)
    torch.manual_seed(5)
    samples = posterior.sample(3)
    logits = torch.einsum("soi,bi->sbo", samples["weight"], inputs) + samples["bias"].unsqueeze(1)
    nll = F.cross_entropy(logits.flatten(0, 1), targets.repeat(3))
    weights = torch.cat([network.weight.flatten(), network.bias])
    kl = (0.5 * (0.04 + weights.square() - 1) - math.log(0.2)).sum()
    torch.testing.assert_close(energy.nll, nll)
    torch.testing.assert_close(energy.complexity, kl)
    torch.testing.assert_close(energy.total, nll + kl / NUM_DATA)


def test_a_batch_twice_over_changes_nothing():
    posterior, _ = point()
    inputs, targets = batch()
    once = free_energy(posterior, (inputs, targets), num_data=NUM_DATA)
    twice = free_energy(posterior, (inputs.repeat(2, 1), targets.repeat(2)), num_data=NUM_DATA)
    torch.testing.assert_close(once, twice)


def test_more_data_make_the_prior_lighter():
    posterior, _ = point()
    data = batch()
    small, large = (free_energy(posterior, data, num_data=n) for n in (10, 1000))
    difference = small.complexity * (1 / 10 - 1 / 1000)
    torch.testing.assert_close(small.total - large.total, difference)


def test_an_example_of_weight_two_is_that_example_twice():
    posterior, _ = point()
    inputs, targets = batch(3)
    weights = torch.tensor([2.0, 1.0, 0.0])
    weighted = free_energy(posterior, (inputs, targets, weights), num_data=NUM_DATA).nll
    index = torch.tensor([0, 0, 1])
    repeated = free_energy(posterior, (inputs[index], targets[index]), num_data=NUM_DATA).nll
    torch.testing.assert_close(weighted, repeated)
    ones = free_energy(posterior, (inputs, targets, torch.ones(3)), num_data=NUM_DATA).nll
    torch.testing.assert_close(ones, free_energy(posterior, (inputs, targets), num_data=1).nll)


def test_example_weights_are_never_broadcast():
    posterior, _ = point()
    inputs, targets = batch(3)
    for weights in (torch.ones(3, 1), torch.ones(1), torch.ones(())):
        with pytest.raises(ValueError, match="one per example"):
            free_energy(posterior, (inputs, targets, weights), num_data=NUM_DATA)


def test_dictionaries_are_batches_too():
    network = nn.Linear(3, 4)
    posterior = maximum_a_posteriori(
        network, Categorical(), forward=lambda net, inputs: net(inputs["features"])
    )
    inputs, targets = batch()
    pair = {"features": inputs, "labels": targets}
    triple = {"features": inputs, "targets": targets, "weights": 2 * torch.ones(6)}
    once = free_energy(posterior, pair, num_data=NUM_DATA).nll
    torch.testing.assert_close(once, F.cross_entropy(network(inputs), targets))
    torch.testing.assert_close(free_energy(posterior, triple, num_data=NUM_DATA).nll, 2 * once)


def test_likelihood_may_use_fewer_draws_than_the_complexity():
    posterior = bayes_by_hypernet(nn.Linear(3, 4), Categorical())
    data = batch()
    torch.manual_seed(2)
    one = free_energy(posterior, data, num_data=NUM_DATA, likelihood_samples=1)
    torch.manual_seed(2)
    every = free_energy(posterior, data, num_data=NUM_DATA)
    torch.testing.assert_close(one.complexity, every.complexity)
    torch.manual_seed(2)
    first = posterior.sample(5).take(slice(1))
    by_hand = negative_log_likelihood(posterior, bbh.batches.Batch(*data), first)
    torch.testing.assert_close(one.nll, by_hand)


def test_mean_of_draws_is_the_mean_log_likelihood_not_its_log_mean():
    network = nn.Linear(1, 1, bias=False)
    posterior = bayes_by_backprop(network, Gaussian(1.0))
    inputs, targets = torch.ones(1, 1), torch.zeros(1, 1)
    samples = bbh.Samples({"weight": torch.tensor([0.0, 2.0]).view(2, 1, 1)})
    nll = negative_log_likelihood(posterior, bbh.batches.Batch(inputs, targets), samples)
    # (0 + 2²/2)/2 + ½ log 2π
    assert nll.item() == pytest.approx(1 + 0.5 * math.log(2 * math.pi))


def test_critics_loss_enters_without_a_factor():
    posterior = bayes_by_hypernet(
        nn.Linear(3, 4), Categorical(), divergence=bbh.divergences.Adversarial()
    )
    energy = free_energy(posterior, batch(), num_data=NUM_DATA, beta=0.0)
    torch.testing.assert_close(energy.total, energy.nll + energy.auxiliary)
    # A fresh critic knows nothing: log 2 for each side.
    assert energy.auxiliary.item() == pytest.approx(2 * math.log(2), abs=0.3)


def test_adversarial_training_perturbs_each_draw_by_its_own_gradient():
    # Two members with opposite weights are attacked in opposite directions.
    network = nn.Linear(1, 1, bias=False)
    posterior = bbh.methods.deep_ensemble(
        network,
        Gaussian(1.0),
        num_members=2,
        adversarial=bbh.AdversarialTraining(epsilon=0.1, weight=0.25),
    )
    samples = bbh.Samples({"weight": torch.tensor([2.0, -2.0]).view(2, 1, 1)})
    data = bbh.batches.Batch(torch.ones(1, 1), torch.zeros(1, 1))
    nll = negative_log_likelihood(posterior, data, samples)
    # Both residuals are ±2 at x = 1, and grow to ±2.2 at x = 1.1.
    by_hand = 0.75 * 0.5 * 2.0**2 + 0.25 * 0.5 * 2.2**2 + 0.5 * math.log(2 * math.pi)
    assert nll.item() == pytest.approx(by_hand, rel=1e-5)


def test_number_of_data_is_asked_for():
    posterior, _ = point()
    with pytest.raises(ValueError, match="num_data=0"):
        free_energy(posterior, batch(), num_data=0)


def test_at_least_one_draw_enters_the_likelihood():
    posterior = bbh.methods.maximum_a_posteriori(nn.Linear(2, 1), bbh.likelihoods.Gaussian())
    batch = (torch.randn(3, 2), torch.randn(3, 1))
    with pytest.raises(ValueError, match="likelihood_samples=0"):
        bbh.free_energy(posterior, batch, num_data=3, likelihood_samples=0)
