"""NUTS against an exact posterior, and the stored reference of the toy study."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import bbh
from bbh_studies.problems.toy.data import load_toy
from bbh_studies.problems.toy.nuts import NutsSettings, convergence, nuts
from bbh_studies.problems.toy.reference import read_reference, sample_reference

QUICK = NutsSettings(chains=2, warmup=5, draws=6, max_tree_depth=3)


@pytest.mark.slow
def test_nuts_finds_the_posterior_of_a_linear_model():
    inputs = torch.randn(15, 2, dtype=torch.double)
    noise, prior = 0.5, bbh.priors.Normal(1.0)
    targets = inputs @ torch.tensor([[1.0], [-0.5]], dtype=torch.double) + 0.3
    targets = targets + noise * torch.randn_like(targets)
    settings = NutsSettings(chains=2, warmup=60, draws=200)
    network, likelihood = nn.Linear(2, 1), bbh.likelihoods.Gaussian(noise)
    drawn = nuts(network, likelihood, prior, inputs, targets, settings)
    weights = torch.cat([drawn.samples["weight"][:, 0], drawn.samples["bias"]], dim=1)
    # Conjugate: precision XᵀX/σ² + I, mean precision⁻¹ Xᵀy/σ², the bias a column of ones.
    design = torch.cat([inputs, torch.ones(15, 1, dtype=torch.double)], dim=1)
    covariance = (design.T @ design / noise**2 + torch.eye(3)).inverse()
    mean = covariance @ design.T @ targets[:, 0] / noise**2
    scale = covariance.diagonal().sqrt()
    found = convergence(weights.unflatten(0, (2, 200)))
    assert found.r_hat < 1.05
    # Four standard errors of a mean and of a variance.
    error = 4 / found.effective_samples**0.5
    assert torch.all((weights.mean(0) - mean).abs() < error * scale)
    assert torch.all((weights.std(0) / scale - 1).abs() < error)
    correlation = covariance / scale / scale.unsqueeze(1)
    assert torch.allclose(weights.T.corrcoef(), correlation, atol=error)
    assert drawn.divergences == 0


def test_nuts_is_repeatable_and_leaves_the_random_state_alone():
    inputs, targets = torch.randn(5, 2), torch.randn(5, 1)

    def draw() -> torch.Tensor:
        likelihood, prior = bbh.likelihoods.Gaussian(1.0), bbh.priors.Normal(1.0)
        return nuts(nn.Linear(2, 1), likelihood, prior, inputs, targets, QUICK).samples["weight"]

    first = draw()
    state = torch.random.get_rng_state()
    nn.Linear(2, 1)
    after_network = torch.random.get_rng_state()
    torch.random.set_rng_state(state)
    assert torch.equal(draw(), first)
    assert torch.equal(torch.random.get_rng_state(), after_network)
    assert first.shape == (12, 1, 2)
    # Chains of equal draws would agree about everything.
    assert not torch.equal(first[:6], first[6:])


def test_chains_apart_do_not_pass_for_converged():
    values = torch.randn(2, 100, 3)
    assert convergence(values).r_hat < 1.05
    effective = convergence(values).effective_samples
    # One point of three is enough.
    values[1, :, 0] += 3
    assert convergence(values).r_hat > 1.5
    assert convergence(values).effective_samples < 0.2 * effective


def test_thinned_draws_are_every_so_many_of_the_chain():
    inputs, targets = torch.randn(5, 2), torch.randn(5, 1)
    likelihood, prior = bbh.likelihoods.Gaussian(1.0), bbh.priors.Normal(1.0)
    whole, thinned = (
        nuts(nn.Linear(2, 1), likelihood, prior, inputs, targets, settings).samples["bias"]
        for settings in (QUICK, replace(QUICK, draws=2, thin=3))
    )
    assert torch.equal(thinned, whole.unflatten(0, (2, 6))[:, 2::3].flatten(0, 1))


@pytest.mark.parametrize("noise_scale", [3.0, 9.0])
def test_the_stored_reference_converged(noise_scale):
    reference = read_reference(noise_scale, 1.0)
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
    assert about["data"] == load_toy(noise_scale).fingerprint


@pytest.mark.parametrize("noise_scale", [9.0, 3.0])
def test_the_stored_reference_obeys_the_virial_theorem(noise_scale):
    # E[w · ∇U(w)] = D under exp(−U), whatever U: here written out a second time.
    reference, data = read_reference(noise_scale, 1.0), load_toy(noise_scale)
    assert reference is not None
    weights = [value.double().requires_grad_() for value in reference.samples.values()]
    first, first_bias, second, second_bias = weights
    inputs, targets = data.train_inputs.double(), data.train_targets.double()
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
    assert error < 4
    assert virial.mean().item() == pytest.approx(301, abs=4 * error)


def test_a_new_reference_is_stored_and_read_again(tmp_path):
    data = load_toy(9.0)
    assert read_reference(9.0, 1.0, tmp_path) is None
    made = sample_reference(data, 1.0, QUICK, kept=3, folder=tmp_path)
    read = read_reference(9.0, 1.0, tmp_path)
    assert read is not None
    assert read.about == made.about
    assert read.about["settings"]["chains"] == 2
    assert all(torch.equal(read.samples[name], made.samples[name]) for name in made.samples)
    assert read.samples["0.bias"].shape == (6, 100)


def test_without_pyro_one_line_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyro.infer", None)
    with pytest.raises(ImportError, match=r"bayes-by-hypernet\[reference\]"):
        sample_reference(load_toy(9.0), 1.0, QUICK, folder=tmp_path)
