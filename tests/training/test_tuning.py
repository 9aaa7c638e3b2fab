"""tune: the choice of prior scale and temperature on validation data."""

import json
import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.training import DivergedError, tuning
from training.small import assert_same_state

NOISE = 0.5


def regression(num_data: int = 8, dim: int = 6) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Small weights and few noisy data: a narrow prior predicts best."""
    design = torch.linalg.qr(torch.randn(num_data, dim))[0]  # so that the posterior factorises
    weights = 0.2 * torch.randn(dim, 1)
    inputs = torch.randn(200, dim)
    noise = NOISE * torch.randn(num_data + 200, 1)
    return (
        design,
        design @ weights + noise[:num_data],
        inputs,
        inputs @ weights + noise[num_data:],
    )


def exact_nll(
    design: Tensor, targets: Tensor, inputs: Tensor, answers: Tensor, scale: float
) -> float:
    """Held-out NLL of Bayesian linear regression with the prior N(0, scale²)."""
    precision = design.T @ design / NOISE**2 + torch.eye(design.shape[1]) / scale**2
    covariance = torch.linalg.inv(precision)
    mean = inputs @ covariance @ design.T @ targets / NOISE**2
    variance = ((inputs @ covariance) * inputs).sum(1, keepdim=True) + NOISE**2
    return -torch.distributions.Normal(mean, variance.sqrt()).log_prob(answers).mean().item()


def problem(seed: int = 0):
    """Arguments of ``tune`` that come by position, for a linear classifier."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(40, 4, generator=generator)
    data = TensorDataset(inputs, inputs[:, :3].argmax(1))
    loader = DataLoader(data, 10, shuffle=True, generator=torch.Generator().manual_seed(5))
    network = nn.Linear(4, 3)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)

    def build(prior: bbh.priors.Prior) -> bbh.Posterior:
        return bbh.methods.bayes_by_backprop(network, bbh.likelihoods.Categorical(), prior)

    return build, loader, DataLoader(data, 40)


@pytest.mark.slow
def test_the_scale_that_predicts_best_is_found():
    torch.manual_seed(1)
    design, targets, inputs, answers = regression()
    scales = (0.02, 0.2, 2.0, 20.0)
    expected = {s: exact_nll(design, targets, inputs, answers, s) for s in scales}
    likelihood = bbh.likelihoods.Gaussian(NOISE)
    tuned = bbh.tune(
        lambda prior: bbh.methods.bayes_by_backprop(
            nn.Linear(6, 1, bias=False), likelihood, prior, initial_scale=0.1, num_samples=16
        ),
        [(design, targets)] * 25,
        [(inputs, answers)],
        epochs=8,
        scales=scales,
        temperatures=(1.0,),
        num_samples=100,
        num_data=len(design),
        learning_rate=0.1,
        scheduler=partial(CosineAnnealingLR, T_max=8),
    )
    assert tuned.best.scale == min(scales, key=lambda scale: expected[scale]) == 0.2
    assert tuned.posterior.prior == bbh.priors.Normal(0.2)
    assert tuned.best.nll == pytest.approx(expected[0.2], abs=0.02)
    # Four settings for half of the epochs, two for all.
    assert [one.epochs for one in tuned.trials] == [4, 4, 4, 4, 8, 8]
    worst = {one.scale for one in tuned.trials[:4]} - {one.scale for one in tuned.trials[4:]}
    halves = {one.scale: one.nll for one in tuned.trials[:4]}
    assert worst == set(sorted(scales, key=lambda scale: halves[scale])[2:])


def test_an_interrupted_call_goes_on_and_ends_the_same(tmp_path, monkeypatch):
    options = {"epochs": 4, "scales": (0.1, 1.0, 3.0), "temperatures": (1.0,)}
    whole = bbh.tune(*problem(), **options)
    passes = 0

    def interrupting(*arguments, **settings):
        nonlocal passes
        passes += 1
        if passes == 3:
            raise KeyboardInterrupt
        return bbh.fit(*arguments, **settings)

    with monkeypatch.context() as patched:
        patched.setattr(tuning, "fit", interrupting)
        with pytest.raises(KeyboardInterrupt):
            bbh.tune(*problem(), **options, folder=tmp_path)
    assert len(json.loads((tmp_path / "tuning.json").read_text())["trials"]) == 2
    resumed = bbh.tune(*problem(), **options, folder=tmp_path)
    assert resumed.trials == whole.trials
    assert_same_state(resumed.posterior.state_dict(), whole.posterior.state_dict())
    # Asked again, nothing is trained: all is in the record. The dropped setting left no checkpoint.
    again = bbh.tune(*problem(), **options, folder=tmp_path)
    assert again.trials == whole.trials
    assert_same_state(again.posterior.state_dict(), whole.posterior.state_dict())
    assert len(list(tmp_path.glob("*.checkpoint"))) == 2


def test_the_record_has_all_numbers_and_the_random_state_is_kept(tmp_path):
    given = problem()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    state = given[1].generator.get_state()
    tuned = bbh.tune(
        *given, epochs=2, scales=(0.5,), temperatures=(1.0, 0.1), seed=3, folder=tmp_path
    )
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(given[1].generator.get_state(), state)
    record = json.loads((tmp_path / "tuning.json").read_text())
    assert record["plan"] == {
        "scales": [0.5],
        "temperatures": [1.0, 0.1],
        "epochs": 2,
        "num_samples": 50,
        "seed": 3,
    }
    assert [one["temperature"] for one in record["trials"]] == [1.0, 0.1]
    assert [one["metrics"]["nll"] for one in record["trials"]] == [t.nll for t in tuned.trials]
    with pytest.raises(ValueError, match="of another call"):
        bbh.tune(*problem(), epochs=2, scales=(0.7,), temperatures=(1.0, 0.1), folder=tmp_path)


def test_a_setting_that_diverges_loses(monkeypatch):
    def diverging(*arguments, temperature, **settings):
        if temperature == 1.0:
            raise DivergedError("nll", 1, math.nan)
        return bbh.fit(*arguments, temperature=temperature, **settings)

    monkeypatch.setattr(tuning, "fit", diverging)
    tuned = bbh.tune(*problem(), epochs=1, scales=(1.0,), temperatures=(1.0, 0.1))
    assert tuned.best.temperature == 0.1
    assert tuned.trials[0].nll == math.inf
    with pytest.raises(DivergedError):
        bbh.tune(*problem(), epochs=1, scales=(1.0,), temperatures=(1.0,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": 1, "scales": ()}, "at least one"),
        ({"epochs": 1, "scales": (1.0, 1.0)}, "each once"),
        ({"epochs": 1, "scales": (-1.0,)}, "-1.0 is not positive"),
        ({"epochs": 1, "temperatures": (math.inf,)}, "inf is not positive and finite"),
        ({"epochs": 1, "temperature": 0.1}, "tune sets temperature"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        bbh.tune(*problem(), **options)
