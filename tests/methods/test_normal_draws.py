"""Gaussian draws in one compiled loop, against the general way."""

import pytest
import torch
from torch import nn

import bbh
from bbh import compiled
from bbh.methods import normal_draws
from bbh.methods.mean_field import MeanFieldNormal
from bbh.methods.normal_draws import draw_in_one_loop

pytestmark = pytest.mark.skipif(compiled.compiler() is None, reason="there is no C++ compiler")
VALUES = {
    "weight": torch.linspace(-2, 2, 35).view(7, 5),
    "bias": torch.linspace(0, 1, 7),
    "scalar": torch.tensor(0.5),
}
SHAPES = {name: value.shape for name, value in VALUES.items()}
PRIORS = [
    bbh.priors.Normal(0.7),
    bbh.priors.Normal(0.7, loc=0.3),
    bbh.priors.FanIn(2.0),
    bbh.priors.Laplace(1.0),
    bbh.priors.Centred({n: 0.1 + v for n, v in VALUES.items()}, bbh.priors.Normal(0.5)),
]


@pytest.fixture
def compiling(monkeypatch):
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")
    monkeypatch.setattr(normal_draws, "_FEWEST", 0)
    normal_draws._loops.cache_clear()  # other tests find no loop
    yield monkeypatch
    normal_draws._loops.cache_clear()


def weights():
    made = MeanFieldNormal({name: value.clone() for name, value in VALUES.items()})
    with torch.no_grad():
        for name in VALUES:
            # Scales from 1e-3 to about 3.
            made.log_scale[name].copy_(torch.empty(SHAPES[name]).uniform_(-7, 1))
    return made


def draws_cost_and_gradients(weights, prior, num_samples):
    torch.manual_seed(1)
    samples = weights.sample(num_samples)
    cost = weights.cost(samples, prior).complexity
    likelihood = sum((index + 1) * one.sin().sum() for index, one in enumerate(samples.values()))
    parameters = list(weights.parameters())
    gradients = torch.autograd.grad(0.3 * cost + likelihood, parameters)
    return *samples.values(), cost, *gradients


@pytest.mark.parametrize("num_samples", [1, 3])
@pytest.mark.parametrize("prior", PRIORS, ids=lambda one: type(one).__name__)
def test_it_is_the_general_way(prior, num_samples, compiling):
    torch.manual_seed(0)
    distribution, prior = weights(), prior.for_shapes(SHAPES)
    compiling.setattr(normal_draws, "_WEIGHTS_PER_PART", 11)  # parts end within tensors
    assert distribution.sample(2).shares("sums")
    found = draws_cost_and_gradients(distribution, prior, num_samples)
    compiling.setattr("bbh.methods.mean_field.draw_in_one_loop", lambda *_: None)
    expected = draws_cost_and_gradients(distribution, prior, num_samples)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_the_cost_alone_and_the_draws_alone_have_gradients(compiling):
    distribution = weights()
    samples = distribution.sample(1)
    distribution.cost(samples, bbh.priors.Normal(2.0)).complexity.backward()
    # d/dm of m²/(2 · 2²), and d/d log s of s²/(2 · 2²) − log s.
    for name, value in VALUES.items():
        torch.testing.assert_close(distribution.loc[name].grad, value / 4)
        scale = distribution.log_scale[name].detach().exp()
        torch.testing.assert_close(distribution.log_scale[name].grad, scale**2 / 4 - 1)
    distribution.zero_grad()
    distribution.sample(1)["bias"].sum().backward()
    assert distribution.loc["bias"].grad.tolist() == [1] * 7
    assert not distribution.loc["weight"].grad.any()


@pytest.mark.parametrize("value", [-200.0, -104.0, -87.5, -1e-3, 0.0, 1.0, 88.7, 200.0])
def test_scales_are_exponentials(value, compiling):
    log_scale = {"w": torch.full((33,), value)}
    made = draw_in_one_loop({"w": torch.zeros(33)}, log_scale, {"w": torch.Size([33])}, 1)
    assert made is not None
    torch.testing.assert_close(made.scale, log_scale["w"].exp(), rtol=3e-7, atol=1e-44)


def test_nan_stays_nan(compiling):
    locs, log_scales = {"w": torch.zeros(2)}, {"w": torch.tensor([0.0, torch.nan])}
    made = draw_in_one_loop(locs, log_scales, {"w": torch.Size([2])}, 1)
    assert made is not None
    assert made.scale.isnan().tolist() == [False, True]
    assert made.sums.isnan().all()


def test_what_has_no_loop(compiling):
    distribution = weights().double()
    assert not distribution.sample(1).shares("sums")
    compiling.setattr(normal_draws, "_FEWEST", 44)
    assert not weights().sample(1).shares("sums")
    with torch.no_grad():
        assert not weights().sample(1).shares("sums")


def test_training_is_the_same(compiling):
    """Up to rounding, and with the same checks of what is not finite."""
    inputs, targets = torch.randn(30, 5), torch.randint(3, (30,))

    def trained():
        torch.manual_seed(0)
        posterior = bbh.methods.bayes_by_backprop(nn.Linear(5, 3), bbh.likelihoods.Categorical())
        step = bbh.TrainingStep(
            posterior, torch.optim.Adam(posterior.parameters(), lr=1e-2), num_data=30
        )
        terms = [step((inputs, targets)) for _ in range(20)]
        with pytest.raises(bbh.DivergedError, match="nll"):
            step((inputs * torch.inf, targets))
        return terms[-1], posterior.weights.marginals()

    found = trained()
    compiling.setattr("bbh.methods.mean_field.draw_in_one_loop", lambda *_: None)
    expected = trained()
    assert found[0] == pytest.approx(expected[0], rel=1e-4)
    for one, other in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_no_draw_is_no_draw(compiling, training):
    made = weights().train(training)
    assert {name: one.shape for name, one in made.sample(0).items()} == {
        name: (0, *shape) for name, shape in SHAPES.items()
    }


def test_second_derivatives_are_those_of_the_general_way(compiling):
    torch.manual_seed(0)
    made = weights()
    parameters = list(made.parameters())
    directions = [torch.randn_like(one) for one in parameters]

    def products():
        torch.manual_seed(1)
        samples = made.sample(2)
        total = 0.3 * made.cost(samples, bbh.priors.Normal(0.7)).complexity
        # The scalar takes no part in the likelihood.
        total = total + samples["weight"].sin().sum() + (samples["bias"] ** 3).sum()
        slopes = torch.autograd.grad(total, parameters, create_graph=True)
        product = sum((a * b).sum() for a, b in zip(slopes, directions, strict=True))
        return *slopes, *torch.autograd.grad(product, parameters)

    found = products()
    compiling.setattr(normal_draws, "_FEWEST", 10**9)
    for one, other in zip(found, products(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


class Cost(nn.Module):
    """The cost of two draws, as the forward pass of a module."""

    def __init__(self, weights: MeanFieldNormal):
        super().__init__()
        self.weights = weights

    def forward(self):
        return self.weights.cost(self.weights.sample(2), bbh.priors.Normal(0.7)).complexity


def test_transforms_of_torch_take_the_general_way(compiling):
    compiling.setattr("bbh.normal_numbers.FEWEST", 0)
    cost = Cost(weights())
    values = {name: one.detach() for name, one in cost.named_parameters()}
    slopes = torch.func.grad(lambda given: torch.func.functional_call(cost, given, ()))(values)
    cost().backward()
    for name, parameter in cost.named_parameters():
        torch.testing.assert_close(slopes[name], parameter.grad, rtol=1e-4, atol=1e-5)
    draw = torch.func.vmap(lambda _: dict(cost.weights.sample(2)), randomness="different")
    drawn = draw(torch.zeros(3))["weight"]
    assert drawn.shape == (3, 2, 7, 5)
    assert not torch.equal(drawn[0], drawn[1])
