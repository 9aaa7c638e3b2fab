"""The authors' code, where it departs from their paper."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bbh
from bbh.divergences.closed_form import normal_kl
from bbh.generators.factored.rmsprop import TensorFlowRMSprop
from bbh.likelihoods import Categorical
from bbh.methods import MultiplicativeFlow
from bbh.priors import Normal
from bbh.samples import size
from bbh_studies.settings import legacy
from bbh_studies.settings.words import ConfigError
from bbh_studies.studies import find_study

MNIST, TOY = find_study("mnist"), find_study("toy")


def test_first_steps_of_rmsprop_are_smaller_than_pytorchs():
    config = MNIST.row("bbh", "legacy")
    weight = nn.Parameter(torch.zeros(1))
    posterior = bbh.methods.maximum_a_posteriori(nn.Linear(1, 1), Categorical())
    optimizer = config.training.make_optimizer(posterior)([weight])
    assert isinstance(optimizer, TensorFlowRMSprop)
    weight.grad = torch.tensor([1e-3])
    optimizer.step()
    assert weight.item() == pytest.approx(-1e-4 * 1e-3 / math.sqrt(0.9), rel=1e-3)


class TestTheToyFiguresEstimator:
    """The notebook's tensors, one by one, in NumPy; the draws of the prior are given."""

    @staticmethod
    def published(generated: np.ndarray, prior: np.ndarray) -> float:
        num_samples = len(generated)
        flat, prior = generated.reshape(-1, 1), prior.reshape(-1, 1)
        across = np.sqrt((prior[:, :, None] - flat[:, None, :]) ** 2 + 1e-8).min(1)
        within = np.sqrt((flat[:, :, None] - flat[:, None, :]) ** 2 + 1e-8)
        # Meant to rule out that a draw is its own neighbour. There is one draw in each row, so that
        # broadcasting makes five by five of it, four of which are still the draw itself.
        within = (within + 1e10 * np.eye(num_samples)[None]).min(1)
        terms = np.log(across / (within + 1e-8) + 1e-8) + np.log(num_samples / (num_samples - 1))
        return terms.mean(1).sum()

    @staticmethod
    def given(draws: torch.Tensor) -> Any:
        class Given(Normal):
            def sample_flat(self, *_: object) -> torch.Tensor:
                return draws

        return Given(1.0)

    @pytest.mark.parametrize("num_samples", [2, 5])
    def test_has_the_value_of_the_published_formula(self, num_samples):
        generated, prior = torch.randn(2, num_samples, 301, dtype=torch.float64)
        generated[0, :3] = prior[0, :3]  # at the floor
        divergence = TOY.row("bbh", "legacy").method.make_divergence()
        cost = divergence({"w": generated}, {"w": torch.Size([301])}, self.given(prior))
        expected = self.published(generated.numpy(), prior.numpy())
        assert cost.complexity.item() == pytest.approx(expected, rel=1e-12)

    def test_draws_do_not_repel_each_other(self):
        """Every value is drawn to its point of the prior: d log|g − p| / dg = 1 / (g − p)."""
        prior = torch.zeros(5, 3, dtype=torch.float64)
        generated = torch.tensor([0.5, 0.5, 0.51, -1.0, 2.0], dtype=torch.float64)
        generated = generated.unsqueeze(1).expand(5, 3).clone().requires_grad_()
        shapes = {"w": torch.Size([3])}
        cost = legacy.FlattenedNearestNeighbour()({"w": generated}, shapes, self.given(prior))
        cost.complexity.backward()
        torch.testing.assert_close(generated.grad, 1 / generated.detach(), rtol=1e-6, atol=0)
        mended = bbh.divergences.NearestNeighbour()({"w": generated}, shapes, self.given(prior))
        (gradient,) = torch.autograd.grad(mended.complexity, generated)
        assert (gradient[2] < -10).all()  # away from its neighbours at 0.5

    def test_trains_in_the_preset_and_cannot_be_stored(self):
        method = TOY.row("bbh", "legacy").method
        assert method.unstorable == "divergence=flattened"
        assert TOY.row("bbh", "corrected").method.unstorable == ""
        with pytest.raises(ValueError, match="at least 2 weight samples"):
            TOY.row("bbh", "legacy").with_settings(num_samples=1).check()


def test_flows_pay_for_dense_layers_only():
    posterior = MNIST.row("mnf", "legacy").build_posterior()
    weights = posterior.weights
    assert isinstance(weights, MultiplicativeFlow)
    dense = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    assert list(weights.penalised) == dense
    assert size(weights.penalised) == 431_080 - 25_570
    assert posterior.prior == Normal(math.exp(0.5))

    # The whole bound is the sum of the layers'; with the same draws the dense share is what is
    # left when the convolutions' is taken away.
    weights = weights.double()

    samples = weights.eval().sample(1)

    def cost(names: list[str]) -> float:
        weights.penalised = {name: weights.shapes[name] for name in names}
        return weights.cost(samples, posterior.prior).complexity.item()

    convolutions = [name for name in weights.shapes if name not in dense]
    assert cost([*weights.shapes]) == pytest.approx(cost(dense) + cost(convolutions))
    # Biases have no multipliers: their share is the closed form.
    loc, scale = (samples.latent(f"{what} of fc2.bias") for what in ("loc", "scale"))
    exact = normal_kl(loc, scale, posterior.prior).item()
    assert cost(["fc2.bias"]) == pytest.approx(exact)


@pytest.mark.parametrize("method", ["map", "dropout"])
def test_biases_are_not_penalised(method):
    posterior = MNIST.row(method, "legacy").build_posterior()
    samples = posterior.sample(1)
    complexity = posterior.weights.cost(samples, posterior.prior).complexity
    kernels = {name: value for name, value in samples.items() if name.endswith("weight")}
    expected = 0.5 * sum(value.square().sum() for value in kernels.values())
    constant = 430_500 * 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(complexity, expected + constant, rtol=1e-5, atol=0.0)
    gradients = torch.autograd.grad(complexity, list(posterior.parameters()), allow_unused=True)
    given = [g is not None and bool(g.any()) for g in gradients]
    assert sum(given) == len(kernels) == 4


def test_the_papers_dropout_masks_single_units():
    network = MNIST.row("dropout", "paper").make_network()
    network.dropout.train()
    # Outputs of the first convolution, all positive: zeros are what dropout has left of them.
    network.conv1.weight.data.zero_()
    network.conv1.bias.data.fill_(1.0)
    seen = []
    network.dropout.register_forward_hook(lambda _, __, output: seen.append(output))
    network(torch.zeros(50, 1, 28, 28))
    kept = (seen[0] != 0).float()
    assert kept.mean().item() == pytest.approx(0.5, abs=0.01)
    torch.testing.assert_close(seen[0], 2 * kept)
    # Within a channel, units are switched off independently of each other.
    shares = kept.flatten(2).mean(2)
    assert shares.std().item() == pytest.approx(0.5 / 24, rel=0.1)


@pytest.mark.parametrize("study", ["mnist", "cifar5"])
def test_the_papers_dropout_pays_as_map_does(study):
    """Half the square of all weights, whatever the rate: the paper's standard normal prior."""
    posterior = find_study(study).row("dropout", "paper").build_posterior()
    bayesian = bbh.network.select_bayesian(posterior.network, None)
    samples = posterior.sample(1)
    complexity = posterior.weights.cost(samples, posterior.prior).complexity
    values = [samples[name] for name in bayesian]
    half = 0.5 * sum(value.double().square().sum() for value in values)
    constant = sum(value.numel() for value in values) * 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(complexity.double(), half + constant, rtol=1e-5, atol=0.0)


def test_corrected_dropout_pays_for_its_masked_kernels():
    """E ½‖mask ∘ k / keep‖² = ½‖k‖²/keep, which at a rate of one half is ‖k‖²."""
    posterior = MNIST.row("dropout", "corrected").build_posterior()
    samples = posterior.sample(1)
    complexity = posterior.weights.cost(samples, posterior.prior).complexity
    masked = ["conv2.weight", "fc1.weight", "fc2.weight"]
    half = sum(
        (1.0 if name in masked else 0.5) * samples.latent(name).double().square().sum()
        for name in samples
    )
    constant = 431_080 * 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(complexity.double(), half + constant, rtol=1e-5, atol=0.0)


def test_dropout_layers_switch_off_single_units_and_stay_on():
    posterior = MNIST.row("dropout", "legacy").build_posterior()
    images = torch.rand(3, 1, 28, 28)
    predictive = bbh.predict(posterior, images, num_samples=7, keep_draws=True)
    assert predictive.num_samples == 7
    assert (predictive.draws.std(0) > 0).any()
    with pytest.raises(ConfigError, match="no place"):
        find_study("digits").row("dropout").with_settings(dropout_layers=True).build_posterior()


def test_unknown_parts_are_refused():
    with pytest.raises(ConfigError, match="penalised=dense: choose one of all, kernels"):
        find_study("digits").row("map").with_settings(penalised="dense").build_posterior()


def test_legacy_presets_are_the_codes():
    for study in ("mnist-generators", "mnist-noise"):
        variant = {"mnist-generators": "single", "mnist-noise": "shared-8"}[study]
        assert find_study(study).row(variant, "legacy").training.optimizer == "rmsprop_tf"
    divergences = find_study("mnist-divergences")
    assert divergences.row("adversarial", "legacy").flat["critic_steps"] == 1
    assert divergences.row("adversarial", "paper").flat["critic_steps"] == 5
    bbb = MNIST.row("bbb", "legacy").flat
    assert 2 * math.log(bbb["initial_scale"]) == pytest.approx(-9)
    ensemble = MNIST.row("ensemble", "legacy").flat
    assert (ensemble["temperature"], ensemble["adversarial_epsilon"]) == (0.0, 0.01)
