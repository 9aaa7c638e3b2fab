"""Likelihoods against torch.distributions and torch's own losses."""

import math

import pytest
import torch
from torch import Tensor
from torch import distributions as td
from torch.nn import functional as F

from bbh.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian

S, B = 3, 5


# --- Classes --------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_categorical_is_torchs(scale: float):
    logits, targets = scale * torch.randn(S, B, 4).double(), torch.randint(0, 4, (B,))
    expected = td.Categorical(logits=logits).log_prob(targets.expand(S, B))
    torch.testing.assert_close(Categorical().log_prob(logits, targets), expected)


def test_categorical_adds_up_positions_and_weighs_classes():
    logits, targets = torch.randn(S, B, 2, 3, 4), torch.randint(0, 4, (B, 2, 3))
    weights = (1.0, 2.0, 0.0, 0.5)
    result = Categorical(weights).log_prob(logits, targets)
    for draw in range(S):
        # Classes second for torch.
        loss = F.cross_entropy(
            logits[draw].movedim(-1, 1), targets, torch.tensor(weights), reduction="none"
        )
        torch.testing.assert_close(result[draw], -loss.sum((1, 2)))


def test_categorical_predictive_is_the_average_of_softmaxes():
    likelihood, logits = Categorical(), torch.randn(S, B, 4).double()
    predictive = likelihood.predictive(likelihood.sums(logits), S, logits)
    probs = logits.softmax(-1)
    torch.testing.assert_close(predictive.mean, probs.mean(0))
    torch.testing.assert_close(predictive.entropy, td.Categorical(probs.mean(0)).entropy())
    torch.testing.assert_close(predictive.expected_entropy, td.Categorical(probs).entropy().mean(0))
    # KL(p_s‖p̄), averaged: the mutual information's other face.
    divergence = (probs * (probs / probs.mean(0)).log()).sum(-1).mean(0)
    torch.testing.assert_close(predictive.mutual_information, divergence)
    torch.testing.assert_close(predictive.confidence, probs.mean(0).amax(-1))
    assert torch.equal(predictive.labels, probs.mean(0).argmax(-1))
    assert predictive.draws is not None
    torch.testing.assert_close(predictive.draws, probs)


def test_certain_draws_have_no_entropy_and_disagreement_has_log_two():
    likelihood = Categorical()
    logits = torch.tensor([[[1000.0, 0.0]], [[0.0, 1000.0]]])
    predictive = likelihood.predictive(likelihood.sums(logits), 2, None)
    assert predictive.expected_entropy.item() == 0
    assert predictive.mutual_information.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.zeros(B), "integer targets"),
        (torch.zeros(B, 1, dtype=torch.long), "shape"),
        (torch.full((B,), 4), r"0 … 3"),
        (torch.full((B,), -1), r"0 … 3"),
    ],
)
def test_categorical_refuses_other_targets(targets: Tensor, message: str):
    with pytest.raises(ValueError, match=message):
        Categorical().log_prob(torch.zeros(S, B, 4), targets)


def test_class_weights_are_checked():
    with pytest.raises(ValueError, match="negative"):
        Categorical((1.0, -1.0))
    with pytest.raises(ValueError, match="2 entries"):
        Categorical((1.0, 1.0)).log_prob(torch.zeros(S, B, 4), torch.zeros(B, dtype=torch.long))


@pytest.mark.parametrize("event", [(), (1,), (2, 3)])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_bernoulli_is_torchs(event: tuple[int, ...], scale: float):
    logits = scale * torch.randn(S, B, *event).double()
    targets = torch.randint(0, 2, (B, *event))
    expected = -F.binary_cross_entropy_with_logits(
        logits, targets.expand_as(logits).double(), reduction="none"
    )
    result = Bernoulli().log_prob(logits, targets)
    torch.testing.assert_close(result, expected.reshape(S, B, -1).sum(2))


def test_bernoulli_weighs_positives():
    logits, targets = torch.randn(S, B), torch.randint(0, 2, (B,))
    expected = -F.binary_cross_entropy_with_logits(
        logits, targets.float().expand(S, B), reduction="none", pos_weight=torch.tensor(2.5)
    )
    torch.testing.assert_close(Bernoulli(2.5).log_prob(logits, targets), expected)


def test_bernoulli_predictive():
    likelihood, logits = Bernoulli(), torch.randn(S, B, 2).double()
    predictive = likelihood.predictive(likelihood.sums(logits), S, None)
    probs = logits.sigmoid()
    torch.testing.assert_close(predictive.mean, probs.mean(0))
    torch.testing.assert_close(predictive.entropy, td.Bernoulli(probs.mean(0)).entropy())
    torch.testing.assert_close(predictive.expected_entropy, td.Bernoulli(probs).entropy().mean(0))
    assert torch.equal(predictive.labels, (probs.mean(0) > 0.5).long())
    torch.testing.assert_close(
        predictive.confidence, torch.where(probs.mean(0) > 0.5, probs.mean(0), 1 - probs.mean(0))
    )


# --- Numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-3, 0.7, 9.0, 1e4])
@pytest.mark.parametrize("event", [(), (1,), (2, 2)])
def test_gaussian_is_torchs(scale: float, event: tuple[int, ...]):
    outputs, targets = torch.randn(S, B, *event), torch.randn(B, *event)
    expected = td.Normal(outputs, scale).log_prob(targets).reshape(S, B, -1).sum(2)
    # The scale is stored as a logarithm in single precision.
    torch.testing.assert_close(
        Gaussian(scale).log_prob(outputs, targets), expected, rtol=1e-4, atol=1e-4
    )


def test_learned_scale_has_the_gradient_of_the_likelihood():
    likelihood = Gaussian(2.0, learned=True)
    outputs, targets = torch.zeros(1, 1000), 0.5 * torch.randn(1000)
    (-likelihood.log_prob(outputs, targets).mean()).backward()
    (log_scale,) = likelihood.parameters()
    assert log_scale.grad is not None
    # ∂/∂log s of log s + y²/(2s²).
    expected = 1 - targets.square().mean().item() / 4
    assert log_scale.grad.item() == pytest.approx(expected, rel=1e-4)
    assert not list(Gaussian(2.0).parameters())
    assert "log_scale" in Gaussian(2.0).state_dict()


def test_heteroscedastic_gaussian_is_torchs():
    outputs, targets = 3 * torch.randn(S, B, 4), torch.randn(B, 2)
    loc, raw = outputs[..., :2], outputs[..., 2:]
    scale = 0.01 + F.softplus(raw)
    expected = td.Normal(loc, scale).log_prob(targets).sum(2)
    likelihood = HeteroscedasticGaussian(min_scale=0.01)
    torch.testing.assert_close(likelihood.log_prob(outputs, targets), expected)
    predictive = likelihood.predictive({}, S, outputs)
    torch.testing.assert_close(predictive.mean, loc.mean(0))
    torch.testing.assert_close(predictive.aleatoric_std, scale.square().mean(0).sqrt())


def test_gaussian_metrics_are_those_of_the_mixture():
    likelihood, outputs, targets = Gaussian(0.5), torch.randn(S, B, 1), torch.randn(B, 1)
    predictive = likelihood.predictive({}, S, outputs)
    metrics = likelihood.metrics(predictive, targets)
    density = td.Normal(outputs, 0.5).log_prob(targets).exp().mean(0)
    assert metrics["nll"] == pytest.approx(-density.log().mean().item(), rel=1e-5)
    error = (outputs.mean(0) - targets).square().mean().sqrt()
    assert metrics["error"] == pytest.approx(error.item(), rel=1e-5)


def test_shapes_are_never_broadcast():
    for likelihood in (Gaussian(), Bernoulli()):
        with pytest.raises(ValueError, match="Reshape the targets"):
            likelihood.log_prob(torch.zeros(S, B, 1), torch.zeros(B))
    with pytest.raises(ValueError, match="even number"):
        HeteroscedasticGaussian().log_prob(torch.zeros(S, B, 3), torch.zeros(B, 1))


def test_scales_are_positive():
    with pytest.raises(ValueError, match="positive"):
        Gaussian(0.0)
    with pytest.raises(ValueError, match="positive"):
        HeteroscedasticGaussian(-1.0)
