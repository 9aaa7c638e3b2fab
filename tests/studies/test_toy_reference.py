"""The exact posterior of the toy network: its parts against closed forms, and what is stored."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import bbh
from bbh_studies.problems.toy.data import load_toy
from bbh_studies.problems.toy.exact import HiddenLayer
from bbh_studies.problems.toy.measures import wasserstein
from bbh_studies.problems.toy.nuts import NutsSettings, convergence, nuts
from bbh_studies.problems.toy.reference import read_reference, sample_reference
from bbh_studies.problems.toy.study import Toy
from bbh_studies.settings.gaussian_prior import GaussianPrior
from bbh_studies.settings.words import ConfigError

QUICK = NutsSettings(chains=2, warmup=5, draws=6, max_tree_depth=3)
PRIOR = GaussianPrior()
STORED = [
    Toy(noise_scale=noise_scale, standardised=standardised)
    for noise_scale in (9.0, 3.0)
    for standardised in (False, True)
]


def normal_potential(values: torch.Tensor) -> torch.Tensor:
    return values.square().sum() / 2


def normal_start() -> torch.Tensor:
    return torch.randn(3, dtype=torch.double)


@pytest.mark.slow
def test_nuts_finds_the_posterior_of_a_linear_model():
    inputs = torch.randn(15, 2, dtype=torch.double)
    noise = 0.5
    targets = inputs @ torch.tensor([1.0, -0.5], dtype=torch.double) + 0.3
    targets = targets + noise * torch.randn_like(targets)
    design = torch.cat([inputs, torch.ones(15, 1, dtype=torch.double)], dim=1)

    def potential(weights: torch.Tensor) -> torch.Tensor:
        missed = targets - design @ weights
        return missed.square().sum() / (2 * noise**2) + weights.square().sum() / 2

    drawn = nuts(potential, normal_start, NutsSettings(chains=2, warmup=60, draws=200))
    weights = drawn.values.flatten(0, 1)
    # Conjugate: precision XᵀX/σ² + I, mean precision⁻¹ Xᵀy/σ², the bias a column of ones.
    covariance = (design.T @ design / noise**2 + torch.eye(3)).inverse()
    mean = covariance @ design.T @ targets / noise**2
    scale = covariance.diagonal().sqrt()
    found = convergence(drawn.values)
    assert found.r_hat < 1.05
    # Four standard errors of a mean and of a variance.
    error = 4 / found.effective_samples**0.5
    assert torch.all((weights.mean(0) - mean).abs() < error * scale)
    assert torch.all((weights.std(0) / scale - 1).abs() < error)
    correlation = covariance / scale / scale.unsqueeze(1)
    assert torch.allclose(weights.T.corrcoef(), correlation, atol=error)
    assert drawn.divergences == 0


def test_nuts_is_repeatable_and_leaves_the_random_state_alone():
    state = torch.random.get_rng_state()
    first = nuts(normal_potential, normal_start, QUICK).values
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.randn(1)
    assert torch.equal(nuts(normal_potential, normal_start, QUICK).values, first)
    assert first.shape == (2, 6, 3)
    # Chains of equal draws would agree about everything.
    assert not torch.equal(first[0], first[1])


def test_chains_apart_do_not_pass_for_converged():
    values = torch.randn(2, 100, 3)
    assert convergence(values).r_hat < 1.05
    effective = convergence(values).effective_samples
    # One point of three is enough.
    values[1, :, 0] += 3
    assert convergence(values).r_hat > 1.5
    assert convergence(values).effective_samples < 0.2 * effective


def test_thinned_draws_are_every_so_many_of_the_chain():
    whole, thinned = (
        nuts(normal_potential, normal_start, settings).values
        for settings in (QUICK, replace(QUICK, draws=2, thin=3))
    )
    assert torch.equal(thinned, whole[:, 2::3])


def small_layer() -> tuple[HiddenLayer, nn.Module]:
    """Four hidden units on five points, with a prior and a noise that are not one."""
    inputs, targets = torch.randn(5, 1), torch.randn(5, 1)
    network = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    return HiddenLayer(inputs, targets, noise_scale=0.3, prior_scale=1.5, units=4), network


def output_posterior(layer: HiddenLayer, weights: torch.Tensor) -> torch.distributions.Distribution:
    """Of the output layer given the hidden one, by inverting a matrix of the size of the weights.

    (The implementation inverts one of the size of the data.)
    """
    kernel, bias = weights.split(4)
    hidden = torch.relu(layer.inputs * kernel + bias)
    design = torch.cat([hidden, torch.ones(5, 1, dtype=torch.double)], 1)
    precision = design.T @ design / 0.3**2 + torch.eye(5) / 1.5**2
    mean = torch.linalg.solve(precision, design.T @ layer.targets / 0.3**2)[:, 0]
    return torch.distributions.MultivariateNormal(mean, precision_matrix=precision)


def test_the_output_layer_is_integrated_out_exactly():
    # p(v, w | y) = p(v | y) p(w | v, y), so that the three logarithms differ by the same constant
    # for all v and w. The left side comes from the network and the library's own densities.
    layer, network = small_layer()
    posterior = bbh.methods.maximum_a_posteriori(
        network, bbh.likelihoods.Gaussian(0.3), bbh.priors.Normal(1.5)
    ).double()
    prior, shapes = bbh.priors.Normal(1.5), posterior.weights.shapes
    constants = []
    for _ in range(6):
        hidden, output = layer.draw_prior(), torch.randn(5, dtype=torch.double)
        samples = {
            "0.weight": hidden[:4].view(1, 4, 1),
            "0.bias": hidden[4:].view(1, 4),
            "2.weight": output[:4].view(1, 1, 4),
            "2.bias": output[4:].view(1, 1),
        }
        fits = posterior.likelihood.log_prob(posterior(layer.inputs, samples), layer.targets)
        joint = fits.sum() + prior.log_density(samples, shapes).sum()
        given = output_posterior(layer, hidden).log_prob(output)
        constants.append((joint + layer.potential(hidden) - given).item())
    assert constants == pytest.approx([constants[0]] * 6, rel=1e-5)


def test_the_output_layer_is_drawn_from_its_gaussian():
    layer, _ = small_layer()
    hidden = layer.draw_prior()
    drawn = layer.with_output_layer(hidden.expand(20_000, -1))
    assert torch.equal(drawn["0.weight"][7, :, 0], hidden[:4])
    assert torch.equal(drawn["0.bias"][7], hidden[4:])
    weights = torch.cat([drawn["2.weight"][:, 0], drawn["2.bias"]], 1)
    expected = output_posterior(layer, hidden)
    assert isinstance(expected, torch.distributions.MultivariateNormal)
    # Whitened, the draws are N(0, I).
    factor = torch.linalg.cholesky(expected.covariance_matrix)
    white = torch.linalg.solve_triangular(factor, (weights - expected.mean).T, upper=False)
    error = 4 / 20_000**0.5
    assert white.mean(1).abs().max() < error
    assert (white.cov() - torch.eye(5)).abs().max() < 2 * error


@pytest.mark.slow
def test_both_ways_to_sample_agree(tmp_path):
    # The references of raw data were made by NUTS over all 301 weights at once.
    problem = Toy(noise_scale=9.0)
    stored = read_reference(problem, PRIOR)
    made = sample_reference(
        problem, PRIOR, NutsSettings(chains=2, warmup=150, draws=150), kept=150, folder=tmp_path
    )
    assert stored is not None
    posterior = bbh.methods.maximum_a_posteriori(problem.make_network(), problem.likelihood())
    first, second = (
        posterior(load_toy(9.0).grid, one.samples).squeeze(-1).detach().numpy()
        for one in (stored, made)
    )
    # The two halves of the stored draws are 0.5 apart, and MAP is 7.3 away.
    assert wasserstein(first, second).mean() < 1.0


@pytest.mark.parametrize("problem", STORED)
def test_the_stored_reference_converged(problem):
    reference = read_reference(problem, PRIOR)
    assert reference is not None
    assert {name: value.shape[1:] for name, value in reference.samples.items()} == {
        "0.weight": (100, 1),
        "0.bias": (100,),
        "2.weight": (1, 100),
        "2.bias": (1,),
    }
    about = reference.about
    assert about["r_hat"] < 1.05
    assert about["effective_samples"] > 400
    assert about["divergences"] == 0
    assert about["data"] == load_toy(problem.noise_scale).fingerprint
    assert about.get("standardised", False) == problem.standardised


@pytest.mark.parametrize("problem", STORED)
def test_the_stored_reference_obeys_the_virial_theorem(problem):
    # E[w · ∇U(w)] = D under exp(−U), whatever U: here written out a second time.
    reference, data = read_reference(problem, PRIOR), load_toy(problem.noise_scale)
    assert reference is not None
    weights = [value.double().requires_grad_() for value in reference.samples.values()]
    first, first_bias, second, second_bias = weights
    inputs, targets = data.train_inputs.double(), data.train_targets.double()
    noise_scale = problem.noise_scale
    if problem.standardised:
        noise_scale = noise_scale / targets.std(correction=0)
        inputs, targets = ((one - one.mean()) / one.std(correction=0) for one in (inputs, targets))
    hidden = torch.relu(inputs @ first.mT + first_bias.unsqueeze(1))
    outputs = hidden @ second.mT + second_bias.unsqueeze(1)
    potential = (outputs - targets).square().sum() / (2 * noise_scale**2)
    potential = potential + sum(one.square().sum() for one in weights) / 2
    slopes = torch.autograd.grad(potential, weights)
    virial = sum(
        (one * slope).flatten(1).sum(1) for one, slope in zip(weights, slopes, strict=True)
    )
    # Six hundred draws, nearly independent.
    error = virial.std().item() / len(virial) ** 0.5
    assert error < 0.1 * 301
    assert virial.mean().item() == pytest.approx(301, abs=4 * error)


def test_a_new_reference_is_stored_and_read_again(tmp_path):
    problem = Toy(standardised=True)
    assert read_reference(problem, PRIOR, tmp_path) is None
    made = sample_reference(problem, PRIOR, QUICK, kept=3, folder=tmp_path)
    read = read_reference(problem, PRIOR, tmp_path)
    assert read is not None
    assert read.about == made.about
    assert read.about["settings"]["chains"] == 2
    assert all(torch.equal(read.samples[name], made.samples[name]) for name in made.samples)
    assert read.samples["0.bias"].shape == (6, 100)
    # That of the raw data is another one.
    assert read_reference(Toy(), PRIOR, tmp_path) is None


def test_another_prior_has_no_reference(tmp_path):
    prior = GaussianPrior(prior="fan_in")
    assert read_reference(Toy(), prior) is None
    with pytest.raises(ConfigError, match="prior=fan_in"):
        sample_reference(Toy(), prior, QUICK, folder=tmp_path)


def test_without_pyro_one_line_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyro.infer", None)
    with pytest.raises(ImportError, match=r"bayes-by-hypernet\[reference\]"):
        sample_reference(Toy(), PRIOR, QUICK, folder=tmp_path)
