"""Bayesian linear regression, whose posterior is known: the methods must find it."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import bbh
from bbh.divergences import Divergence, NearestNeighbourEntropy
from bbh.generators import LayerWise
from bbh.methods import MeanFieldNormal
from bbh.noise import GaussianNoise
from bbh.per_example import Sampling
from bbh.priors import Normal

NOISE, PRIOR = 0.5, 1.5
LIKELIHOOD = bbh.likelihoods.Gaussian(NOISE)
STEPS_PER_EPOCH = 50


def train(posterior: bbh.Posterior, inputs: Tensor, targets: Tensor, steps: int, rate: float):
    """Full batches, a learning rate that falls to zero so that the noise averages out."""
    epochs = steps // STEPS_PER_EPOCH
    bbh.fit(
        posterior,
        [(inputs, targets)] * STEPS_PER_EPOCH,
        num_data=len(inputs),
        epochs=epochs,
        learning_rate=rate,
        scheduler=partial(CosineAnnealingLR, T_max=epochs),
        progress=False,
    )


def exact_posterior(design: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and precision matrix of the weights given the data."""
    precision = design.T @ design / NOISE**2 + torch.eye(design.shape[1]) / PRIOR**2
    return torch.linalg.solve(precision, design.T @ targets / NOISE**2)[:, 0], precision


def observe(design: Tensor, weights: list[float]) -> Tensor:
    return design @ torch.tensor(weights).unsqueeze(1) + NOISE * torch.randn(len(design), 1)


def mean_field(posterior: bbh.Posterior) -> tuple[Tensor, Tensor]:
    assert isinstance(posterior.weights, MeanFieldNormal)
    loc, scale = posterior.weights.marginals()
    return loc.detach(), scale.detach()


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(one, marks=() if one is Sampling.WEIGHTS else pytest.mark.slow)
        for one in Sampling
    ],
)
def test_bayes_by_backprop_finds_a_factorised_posterior(sampling: Sampling):
    # Orthogonal columns of different lengths: the posterior is three independent Gaussians.
    columns = torch.linalg.qr(torch.randn(16, 3))[0] * torch.tensor([4.0, 2.0, 0.8])
    targets = observe(columns, [1.0, -2.0, 0.5])
    mean, precision = exact_posterior(columns, targets)
    std = precision.diagonal().rsqrt()
    posterior = bbh.methods.bayes_by_backprop(
        nn.Linear(3, 1, bias=False),
        LIKELIHOOD,
        Normal(PRIOR),
        initial_scale=0.1,
        sampling=sampling,
        # Per-example draws are 16 already.
        num_samples=4 if sampling is Sampling.WEIGHTS else 1,
    )
    train(posterior, columns, targets, steps=600, rate=0.05)
    loc, scale = mean_field(posterior)
    # What is left is the optimiser's noise: over several seeds means were off by at most 0.12
    # standard deviations and scales by 10 %.
    assert ((loc - mean).abs() < 0.25 * std).all()
    torch.testing.assert_close(scale, std, rtol=0.15, atol=0)


@pytest.mark.slow
def test_bayes_by_backprop_finds_the_mean_field_optimum_of_a_correlated_posterior():
    # Minimising KL(q‖p) over factorised Gaussians: exact means, variances 1/diag(precision),
    # which is less than the marginals' own.
    base = torch.randn(20, 3)
    design = base @ torch.tensor([[1.0, 0.8, 0.0], [0.0, 0.6, 0.5], [0.0, 0.0, 0.8]])
    targets = observe(design, [1.0, -1.0, 0.5])
    mean, precision = exact_posterior(design, targets)
    optimum, marginal = precision.diagonal().rsqrt(), precision.inverse().diagonal().sqrt()
    assert (optimum < 0.9 * marginal).all()  # otherwise this would show nothing
    posterior = bbh.methods.bayes_by_backprop(
        nn.Linear(3, 1, bias=False), LIKELIHOOD, Normal(PRIOR), initial_scale=0.1, num_samples=4
    )
    train(posterior, design, targets, steps=800, rate=0.05)
    loc, scale = mean_field(posterior)
    # Over several seeds means were off by at most 0.08 of these scales, and scales by 5 %; the
    # marginals' own scales are larger by a factor of 1.2 to 2.3.
    assert ((loc - mean).abs() < 0.25 * optimum).all()
    torch.testing.assert_close(scale, optimum, rtol=0.12, atol=0)


def test_maximum_a_posteriori_finds_the_mode():
    design = torch.randn(20, 3)
    targets = observe(design, [1.0, -1.0, 0.5])
    mean, _ = exact_posterior(design, targets)
    posterior = bbh.methods.maximum_a_posteriori(
        nn.Linear(3, 1, bias=False), LIKELIHOOD, Normal(PRIOR)
    )
    train(posterior, design, targets, steps=500, rate=0.1)
    # Deterministic and quadratic: the optimiser is the only error.
    torch.testing.assert_close(posterior.sample(1)["weight"][0, 0], mean, rtol=0, atol=1e-3)


# Weight and bias with centred inputs are independent given the data, and so are two tensors with
# noise of their own. One linear layer (slope 1) makes exactly Gaussians, for which the entropy
# estimate is off by a constant; the others must find a shape. With several noise dimensions the
# third neighbour is needed: the gradient of the first has no variance.
@pytest.mark.parametrize(
    ("generator", "dim", "divergence", "num_samples"),
    [
        (LayerWise(hidden=(8,), slope=1.0), 1, NearestNeighbourEntropy(), 5),
        pytest.param(
            *(LayerWise(hidden=(16,)), 1, NearestNeighbourEntropy(), 5), marks=pytest.mark.slow
        ),
        pytest.param(
            *(LayerWise(hidden=(16,)), 4, NearestNeighbourEntropy(neighbours=3), 10),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["linear", "one dimension", "four dimensions"],
)
def test_bayes_by_hypernet_finds_the_exact_predictive(
    generator: LayerWise, dim: int, divergence: Divergence, num_samples: int
):
    inputs = torch.linspace(-1, 1, 20).unsqueeze(1)
    design = torch.cat([inputs, torch.ones_like(inputs)], dim=1)
    targets = observe(design, [0.8, 0.3])
    mean, precision = exact_posterior(design, targets)
    assert abs(precision[0, 1]) < 1e-4
    posterior = bbh.methods.bayes_by_hypernet(
        nn.Linear(1, 1),
        LIKELIHOOD,
        Normal(PRIOR),
        generator=generator,
        noise=GaussianNoise(dim),
        divergence=divergence,
        num_samples=num_samples,
    )
    train(posterior, inputs, targets, steps=700, rate=0.02)
    new = torch.tensor([[-3.0], [0.0], [0.5], [2.0]])
    features = torch.cat([new, torch.ones_like(new)], dim=1)
    expected = (features @ mean).unsqueeze(1)
    variance = (features.square() @ precision.diagonal().reciprocal()).unsqueeze(1)
    predictive = bbh.predict(posterior, new, num_samples=5000)
    # 5 000 draws know a mean to 0.014 and a standard deviation to 0.01 of itself; the rest is
    # training noise: over several seeds means were off by at most 0.11 standard deviations and
    # spreads by 6 %.
    assert ((predictive.mean - expected).abs() < 0.25 * variance.sqrt()).all()
    torch.testing.assert_close(predictive.epistemic_std, variance.sqrt(), rtol=0.15, atol=0)
    total = (variance + NOISE**2).sqrt()
    torch.testing.assert_close(predictive.total_std, total, rtol=0.1, atol=0)
    lower, upper = predictive.interval(0.9)
    # ±1.645 standard deviations of a Gaussian; the observation noise hides small differences.
    torch.testing.assert_close(upper - lower, 2 * 1.645 * total, rtol=0.1, atol=0)


def test_free_energy_at_the_exact_posterior_is_the_evidence():
    # −ELBO·N = −log p(targets) when q is the posterior, for every number of draws on average.
    design = torch.linalg.qr(torch.randn(8, 2))[0] * torch.tensor([3.0, 1.0])
    targets = observe(design, [1.0, -1.0])
    mean, precision = exact_posterior(design, targets)
    posterior = bbh.methods.bayes_by_backprop(
        nn.Linear(2, 1, bias=False), LIKELIHOOD, Normal(PRIOR)
    )
    weights = posterior.weights
    assert isinstance(weights, MeanFieldNormal)
    with torch.no_grad():
        next(weights.loc.parameters()).copy_(mean.unsqueeze(0))
        next(weights.log_scale.parameters()).copy_(precision.diagonal().rsqrt().log().unsqueeze(0))
        energy = bbh.free_energy(posterior, (design, targets), num_data=8, num_samples=20_000)
    covariance = design @ design.T * PRIOR**2 + NOISE**2 * torch.eye(8)
    evidence = torch.distributions.MultivariateNormal(torch.zeros(8), covariance)
    # The summed log likelihood varies by about one nat per draw: 0.007 over 20 000.
    expected = -evidence.log_prob(targets[:, 0]).item()
    assert 8 * energy.total.item() == pytest.approx(expected, abs=0.05)
    assert math.isfinite(expected)
