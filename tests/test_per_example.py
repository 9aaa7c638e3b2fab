"""Per-example draws: same distribution for one example, independent between examples."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bbh.methods import DropoutMasks, MeanFieldNormal
from bbh.methods.mean_field import draw_normal
from bbh.per_example import InputDropout, PerExampleWeight, Sampling

PER_EXAMPLE = [Sampling.LOCAL, Sampling.FLIPOUT]
# A batch of so many copies of one example shows the distribution of its output. Its mean is then
# known to 1/√20 000 = 0.7 % of a standard deviation, its variance to 1 %.
COPIES = 20_000


def one_draw(loc: Tensor, scale: Tensor, sampling: Sampling) -> PerExampleWeight:
    draws = draw_normal(loc.unsqueeze(0), scale.unsqueeze(0), sampling)
    weight = draws.draw(0)
    assert isinstance(weight, PerExampleWeight)
    return weight


def spread(weight: PerExampleWeight, loc: Tensor, scale: Tensor, sampling: Sampling) -> Tensor:
    """Variance of each weight between examples. Flipout only flips the draw it was given:
    (w − loc)², whose mean over draws is scale²."""
    return scale.square() if sampling is Sampling.LOCAL else (weight - loc).square()


@pytest.mark.parametrize("sampling", PER_EXAMPLE)
def test_linear_layer_has_the_moments_of_sampled_weights(sampling: Sampling):
    loc, scale, bias = torch.randn(2, 3), torch.rand(2, 3) + 0.2, torch.randn(2)
    inputs = torch.randn(1, 3)
    weight = one_draw(loc, scale, sampling)
    outputs = F.linear(inputs.expand(COPIES, 3), weight, bias)
    variance = (inputs.square() @ spread(weight, loc, scale, sampling).T)[0]
    errors = outputs - (inputs @ loc.T + bias)
    assert (errors.mean(0).abs() < 4 * (variance / COPIES).sqrt()).all()
    torch.testing.assert_close(errors.square().mean(0), variance, rtol=0.05, atol=0)
    # Neither units of one example nor examples share noise. (A shared draw correlates by 1.)
    standardised = errors / variance.sqrt()
    assert (standardised[:, 0] * standardised[:, 1]).mean().abs() < 5 / math.sqrt(COPIES)
    assert (standardised[1:] * standardised[:-1]).mean().abs() < 5 / math.sqrt(COPIES)


@pytest.mark.parametrize("sampling", PER_EXAMPLE)
def test_grouped_convolution_has_the_moments_of_sampled_weights(sampling: Sampling):
    loc, scale, bias = torch.randn(4, 1, 3, 3), torch.rand(4, 1, 3, 3) + 0.2, torch.randn(4)
    image = torch.randn(1, 2, 5, 5)
    weight = one_draw(loc, scale, sampling)
    settings = {"stride": 2, "padding": 1, "groups": 2}
    outputs = F.conv2d(image.expand(COPIES, 2, 5, 5), weight, bias, **settings)
    errors = outputs - F.conv2d(image, loc, bias, **settings)
    # With one input channel per group all nine entries of a kernel flip together.
    if sampling is Sampling.LOCAL:
        variance = F.conv2d(image.square(), scale.square(), **settings)[0]
    else:
        variance = F.conv2d(image, weight - loc, **settings)[0].square()
    assert (errors.mean(0).abs() < 5 * (variance / COPIES).sqrt() + 1e-6).all()
    torch.testing.assert_close(errors.square().mean(0), variance, rtol=0.06, atol=1e-6)


def test_flipout_keeps_the_correlation_of_positions_and_local_noise_does_not():
    # One weight, two positions with input 1: a sampled weight gives both the same output.
    loc, scale, inputs = torch.zeros(1, 1, 1), torch.ones(1, 1, 1), torch.ones(COPIES, 1, 2)
    flipped = F.conv1d(inputs, one_draw(loc, scale, Sampling.FLIPOUT)).squeeze()
    torch.testing.assert_close(flipped[:, 0], flipped[:, 1])
    local = F.conv1d(inputs, one_draw(loc, scale, Sampling.LOCAL)).squeeze()
    assert torch.corrcoef(local.T)[0, 1].abs() < 5 / math.sqrt(COPIES)


def test_dropout_of_inputs_has_the_moments_of_masked_kernels():
    rate, keep = 0.3, 0.7
    kernel, inputs = torch.randn(2, 3), torch.randn(1, 3)
    copies = inputs.expand(40_000, 3)
    weight = PerExampleWeight.wrap(kernel, InputDropout(kernel, rate))
    outputs = F.linear(copies, weight)
    # A mask shared by the units of an example: covariance Σ_i x_i² k_ui k_vi rate/keep.
    covariance = (kernel * inputs.square()) @ kernel.T * rate / keep
    torch.testing.assert_close(outputs.mean(0), (inputs @ kernel.T)[0], rtol=0, atol=0.03)
    torch.testing.assert_close(torch.cov(outputs.T), covariance, rtol=0.05, atol=0.03)


def test_dropout_in_training_and_in_prediction_is_the_same_distribution():
    # Four units in two groups; an output sums over the units of its own group.
    kernel, inputs = torch.randn(4, 2, 1), torch.randn(1, 4, 1)
    weights = DropoutMasks({"w": kernel}, {"w": 1}, 0.5, groups={"w": 2})
    with torch.no_grad():
        weight = weights.train().sample(1).apart()[0]["w"]
        in_training = F.conv1d(inputs.expand(COPIES, 4, 1), weight, groups=2).squeeze()
        draws = weights.eval().sample(COPIES)["w"].view(COPIES, 2, 2, 2)
        in_prediction = (draws @ inputs.view(2, 2, 1)).flatten(1)
    mean = F.conv1d(inputs, kernel, groups=2).flatten()
    grouped = kernel.view(2, 2, 2)
    # Var(mask/keep) = rate/keep = 1.
    blocks = (inputs.view(2, 1, 2).square() * grouped) @ grouped.transpose(1, 2)
    covariance = torch.block_diag(*blocks)
    # Four standard errors of outputs of size one to three.
    for drawn in (in_training, in_prediction):
        torch.testing.assert_close(drawn.mean(0), mean, rtol=0, atol=0.08)
        torch.testing.assert_close(torch.cov(drawn.T), covariance, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("sampling", PER_EXAMPLE)
def test_gradients_of_loc_and_scale_are_unbiased(sampling: Sampling):
    # E[out²] = (x·loc)² + x²·scale², so its gradients are known; for Flipout the magnitude of
    # ε is the draw's own: scale·ε² in place of scale.
    loc, scale = torch.randn(1, 3, requires_grad=True), torch.rand(1, 3, requires_grad=True)
    inputs = torch.randn(1, 3)
    weight = one_draw(loc, scale, sampling)
    outputs = F.linear(inputs.expand(COPIES, 3), weight)
    got = torch.autograd.grad(outputs.square().mean(), (loc, scale), retain_graph=True)
    noise = 1.0 if sampling is Sampling.LOCAL else ((weight - loc) / scale).square()
    expected = 2 * (inputs @ loc.T) * inputs, 2 * inputs.square() * scale * noise
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=0.05, atol=0.05)


def test_zero_inputs_have_finite_gradients():
    loc, scale = torch.randn(1, 2, 3, requires_grad=True), torch.rand(1, 2, 3, requires_grad=True)
    weight = draw_normal(loc, scale, Sampling.LOCAL).draw(0)
    inputs = torch.zeros(4, 3, requires_grad=True)
    gradients = torch.autograd.grad(F.linear(inputs, weight).sum(), (loc, scale, inputs))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("sampling", PER_EXAMPLE)
def test_other_operations_see_the_ordinary_draw(sampling: Sampling):
    loc, scale = torch.randn(5, 2, 3), torch.rand(5, 2, 3)
    torch.manual_seed(7)
    plain = draw_normal(loc, scale, Sampling.WEIGHTS)
    torch.manual_seed(7)
    wrapped = draw_normal(loc, scale, sampling)
    assert isinstance(wrapped, PerExampleWeight)
    torch.testing.assert_close(wrapped + 0, plain)
    one = wrapped.draw(3)
    vector = torch.randn(3)
    torch.testing.assert_close(one @ vector, plain[3] @ vector)
    # A single example without a batch axis: nothing to draw apart.
    torch.testing.assert_close(F.linear(vector, one), F.linear(vector, plain[3]))


@pytest.mark.parametrize("sampling", PER_EXAMPLE)
def test_biases_and_evaluation_are_ordinary(sampling: Sampling):
    weights = MeanFieldNormal(
        {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}, sampling=sampling
    )
    samples = weights.train().sample(4)
    assert isinstance(samples["weight"], PerExampleWeight)
    assert not isinstance(samples["bias"], PerExampleWeight)
    assert not isinstance(weights.eval().sample(4)["weight"], PerExampleWeight)


def test_bias_may_be_named():
    loc, bias = torch.randn(1, 2, 3), torch.tensor([10.0, -10.0])
    weight = draw_normal(loc, 0 * loc, Sampling.LOCAL).draw(0)
    inputs = torch.randn(4, 3)
    torch.testing.assert_close(F.linear(inputs, weight, bias=bias), inputs @ loc[0].T + bias)
