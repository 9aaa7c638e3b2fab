"""Linear ensembles, whose attacks have closed forms, and what tests of attacks share."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bbh
from bbh.attacks import (
    FGSM,
    L2,
    PGD,
    Attacked,
    LegacyFGSM,
    LInf,
)
from bbh.attacks.loss import AveragedLoss
from bbh.prediction.draws import Draws
from bbh.samples import Params

Categorical = bbh.likelihoods.Categorical
over_norms = pytest.mark.parametrize("norm", [LInf(), L2()], ids=["linf", "l2"])
over_attacks = pytest.mark.parametrize(
    "attack", [FGSM, PGD, LegacyFGSM], ids=lambda attack: attack.__name__
)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def images(number: int = 6, features: int = 4) -> Tensor:
    """Far enough from the bounds 0 and 1 for small attacks not to reach them."""
    return 0.4 + 0.2 * torch.rand(number, features)


def linear_ensemble(num_members: int = 5) -> tuple[Any, Tensor, Tensor]:
    """Linear classifiers that disagree, and their weights [S, C, D] and biases [S, C]."""
    posterior = bbh.methods.deep_ensemble(nn.Linear(4, 3), Categorical(), num_members=num_members)
    with torch.no_grad():
        for value in posterior.weights.parameters():
            value.copy_(2 * torch.randn_like(value))
    samples = posterior.sample(num_members)
    return posterior, samples["weight"].detach(), samples["bias"].detach()


def closed_form_gradient(weight: Tensor, bias: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """∇ −log 1/S Σ_s softmax(W_s x + b_s)_y = −Σ_s r_s W_sᵀ(e_y − p_s), r_s ∝ p_s(y)."""
    weight, bias, inputs = weight.double(), bias.double(), inputs.double()
    probs = (torch.einsum("scd,bd->sbc", weight, inputs) + bias.unsqueeze(1)).softmax(-1)
    of_target = probs[:, torch.arange(len(labels)), labels]
    shares = of_target / of_target.sum(0)
    residuals = nn.functional.one_hot(labels, 3) - probs
    return -torch.einsum("sb,sbc,scd->bd", shares, residuals, weight)


def averaged_loss(posterior: Any, inputs: Tensor, labels: Tensor, samples: Params) -> Tensor:
    """−log mean p, from the library's own predictions."""
    probs = bbh.predict(posterior, inputs, samples=samples, keep_draws=True).mean
    return -probs[torch.arange(len(labels)), labels].log()


def loss_of(
    posterior: Any, samples: Params, labels: Tensor = LABELS, at_once: int = 100
) -> AveragedLoss:
    return AveragedLoss(posterior.eval(), Draws(posterior, 1, samples, 0), labels, at_once, None)


def assert_same_direction(first: Tensor, second: Tensor, **tolerances: float) -> None:
    """Equal for every example but for a positive factor."""
    scaled = [
        one / one.flatten(1).abs().amax(1).clamp(min=1e-30).view(-1, *[1] * (one.dim() - 1))
        for one in (first, second)
    ]
    torch.testing.assert_close(*scaled, **tolerances)


def assert_same(first: Attacked, second: Attacked) -> None:
    torch.testing.assert_close(first.inputs, second.inputs)
    torch.testing.assert_close(first.loss, second.loss)
    torch.testing.assert_close(first.clean_loss, second.clean_loss)
