"""Standardised layers of the toy network: same posterior, predictions in raw units."""

import pytest
import torch
from torch import nn

import bbh
from bbh_studies.problems.toy.data import load_toy
from bbh_studies.problems.toy.scaling import Scaled, Scaling
from bbh_studies.problems.toy.study import Toy, toy_network
from bbh_studies.studies import find_study


def test_training_data_become_standard_and_come_back():
    data = load_toy(9.0)
    scaling = Toy(standardised=True).scaling
    for seen in (scaling.inputs(data.train_inputs), scaling.targets(data.train_targets)):
        assert seen.mean().item() == pytest.approx(0, abs=1e-6)
        assert seen.std(correction=0).item() == pytest.approx(1, abs=1e-6)
    back = scaling.outputs(scaling.targets(data.train_targets))
    assert torch.allclose(back, data.train_targets, atol=1e-5)
    # Raw data pass as they are.
    assert Toy().scaling == Scaling()
    assert torch.equal(Scaling().inputs(data.grid), data.grid)


def test_raw_data_have_the_network_that_they_had():
    grid = load_toy(9.0).grid
    network = toy_network()
    plain = nn.Sequential(nn.Linear(1, 100), nn.ReLU(), nn.Linear(100, 1))
    plain.load_state_dict(network.state_dict())
    assert torch.equal(network(grid), plain(grid))


def test_only_the_corrected_preset_standardises():
    toy = find_study("toy")
    for preset, standardised in (("corrected", True), ("legacy", False)):
        assert {one.flat["standardised"] for one in toy.rows(preset).values()} == {standardised}


def test_the_exact_posterior_of_a_linear_model_maps_back():
    # Weights and bias of a line through standardised data, with N(0, 1) priors: conjugate.
    noise_scale, inputs = 4.0, 5 + 3 * torch.randn(12, 1).double()
    targets = 100 - 20 * inputs + noise_scale * torch.randn_like(inputs)
    scaling = Scaling.of(inputs, targets)
    deviation = targets.std(correction=0)
    seen = (inputs - inputs.mean()) / inputs.std(correction=0)
    design = torch.cat([seen, torch.ones_like(seen)], 1)
    noise = noise_scale / deviation
    precision = design.T @ design / noise**2 + torch.eye(2)
    mean = torch.linalg.solve(precision, design.T @ ((targets - targets.mean()) / deviation))
    exact = torch.distributions.MultivariateNormal(
        mean[:, 0] / noise**2, precision_matrix=precision
    )
    network = Scaled(scaling, nn.Linear(1, 1))
    likelihood, prior = bbh.likelihoods.Gaussian(noise_scale), bbh.priors.Normal(1.0)
    posterior = bbh.methods.maximum_a_posteriori(network, likelihood, prior).double()
    # With raw data and raw noise, likelihood times prior is that posterior up to a constant.
    weights = torch.randn(6, 2).double()
    samples = {"0.weight": weights[:, :1].unsqueeze(-1), "0.bias": weights[:, 1:]}
    fits = posterior.likelihood.log_prob(posterior(inputs, samples), targets).sum(1)
    joint = fits + prior.log_density(samples, posterior.weights.shapes)
    constant = joint - exact.log_prob(weights)
    assert torch.allclose(constant, constant[0].expand(6), rtol=1e-5)
    # Predictions of exact draws are in raw units: m_y + s_y times those of the line.
    drawn = exact.sample((5000,))
    samples = {"0.weight": drawn[:, :1].unsqueeze(-1), "0.bias": drawn[:, 1:]}
    predictive = bbh.predict(posterior, inputs, samples=samples)
    expected = targets.mean() + deviation * (design @ exact.mean).unsqueeze(1)
    spread = deviation * (design @ exact.covariance_matrix @ design.T).diagonal().sqrt()
    assert torch.all((predictive.mean - expected).abs()[:, 0] < 4 * spread / 5000**0.5)
    assert torch.allclose(predictive.locs.std(0)[:, 0], spread, rtol=0.05)
    assert predictive.scales.unique().item() == pytest.approx(noise_scale, rel=1e-6)
