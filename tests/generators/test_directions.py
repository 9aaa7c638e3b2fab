"""Weights that move along lines: the formula, where they start, and a KL from few draws."""

import math

import pytest
import torch
from torch import Tensor, nn

import bbh
from bbh.divergences import NearestNeighbourEntropy, lines_cost
from bbh.divergences.closed_form import normal_kl
from bbh.generators import Directions
from bbh.noise import GaussianNoise
from bbh.priors import Centred, DiagonalNormal, FanIn, Laplace, Normal, PerLayer, Prior
from bbh.samples import Params, Shapes
from interpreter import run_interpreted
from scenarios import LeNet, SmallLeNet, TransformerNet

# Kernels, a bias, a matrix with one row, one with one column, and a single number.
ODD_SHAPES: Shapes = {
    "wide": torch.Size([4, 3, 2, 2]),
    "tall": torch.Size([6, 2]),
    "bias": torch.Size([6]),
    "row": torch.Size([1, 5]),
    "column": torch.Size([5, 1]),
    "number": torch.Size([]),
}


def values_of(shapes: Shapes) -> Params:
    torch.manual_seed(0)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def made_by_hand(generator: nn.Module, noise: Tensor) -> Params:
    """m + s·h tensor by tensor in double precision, from the stored parameters."""
    state = {name: value.double() for name, value in generator.state_dict().items()}
    weights: Params = {}
    for group, name in enumerate(ODD_SHAPES):
        hidden = noise[:, group].double()
        for layer in range(2):
            hidden = hidden @ state[f"trunk.layers.{layer}.weight"].T
            hidden = hidden + state[f"trunk.layers.{layer}.bias"]
            hidden = torch.where(hidden > 0, hidden, 0.1 * hidden)
        moved = hidden @ state["trunk.output.weight"][group] + state["trunk.output.bias"][group]
        moved = moved * state["gain"][group]
        mean, direction = state[f"means.{name}"], state[f"directions.{name}"]
        weights[name] = torch.stack([mean + one * direction for one in moved])
    return weights


@pytest.mark.parametrize("shared", [True, False])
def test_weights_are_means_and_steps_along_lines(shared):
    kind = GaussianNoise(2, shared=shared)
    generator = Directions().build(values_of(ODD_SHAPES), kind)
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        noise = kind.sample(4, len(ODD_SHAPES), torch.zeros(()))
        made = generator(noise)
    for name, expected in made_by_hand(generator, noise).items():
        torch.testing.assert_close(made[name].double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make_network", [LeNet, SmallLeNet, TransformerNet])
def test_it_is_as_large_as_it_says(make_network):
    values = dict(make_network().named_parameters())
    description = Directions(hidden=(8, 4))
    shapes = {name: value.shape for name, value in values.items()}
    built = description.build(values, GaussianNoise(3))
    number = sum(parameter.numel() for parameter in built.parameters())
    assert number == description.num_parameters(shapes, 3)


def test_a_large_network_takes_little_more_than_two_parameters_for_a_weight():
    # The kernels of a ResNet-50's last stage.
    shapes: Shapes = {
        "in": torch.Size([512, 2048, 1, 1]),
        "middle": torch.Size([512, 512, 3, 3]),
        "out": torch.Size([2048, 512, 1, 1]),
    }
    weights = bbh.samples.size(shapes)
    assert Directions().num_parameters(shapes, 4) / weights < 2.001


@pytest.mark.parametrize("shared", [True, False])
def test_weights_start_around_the_networks_own(shared):
    values = values_of({"a": torch.Size([50, 30]), "b": torch.Size([20, 3, 5, 5])})
    generator = Directions(spread=0.2).build(values, GaussianNoise(4, shared=shared))
    with torch.no_grad():
        draws = generator(GaussianNoise(4, shared=shared).sample(4000, 2, values["a"]))
    for name, fan_in in (("a", 30), ("b", 75)):
        spread = 0.2 / math.sqrt(fan_in)
        away = (draws[name].mean(0) - values[name]).abs()
        assert away.max() < spread
        assert away.square().mean().sqrt() < 0.3 * spread
        found = draws[name].std(0)
        assert found.mean().item() == pytest.approx(spread, rel=0.1)
        assert found.min() > 0.5 * spread


PRIORS: dict[str, Prior] = {
    "normal": Normal(0.7, loc=0.3),
    "fan_in": FanIn(2.0).for_shapes(ODD_SHAPES),
    "centred": Centred(values_of(ODD_SHAPES), Normal(0.5)),
    "diagonal": DiagonalNormal(
        values_of(ODD_SHAPES), {name: v.abs() + 0.2 for name, v in values_of(ODD_SHAPES).items()}
    ),
    "laplace": Laplace(0.5),
    "per_layer": PerLayer({"bias": Laplace(0.2)}, default=Normal(0.4)),
}


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
def test_the_kl_of_lines_is_that_of_all_their_weights(prior):
    """Value and gradient: from draws of h, and from the weights that the same draws make."""
    generator = Directions(spread=0.5).build(values_of(ODD_SHAPES), GaussianNoise(2)).double()
    noise = torch.randn(NearestNeighbourEntropy.draws_of_lines, len(ODD_SHAPES), 2).double()
    # Far below all distances: it acts on h in one case and on w in the other.
    divergence = NearestNeighbourEntropy(floor=1e-9)
    found: list[tuple[Tensor, ...]] = []
    for lines in (None, generator.lines(noise)):
        draws = generator(noise)
        cost = divergence(draws, ODD_SHAPES, prior, lines=lines).complexity
        found.append((cost, *torch.autograd.grad(cost, list(generator.parameters()))))
    for whole, few in zip(*found, strict=True):
        torch.testing.assert_close(few, whole, rtol=1e-6, atol=1e-6)


def test_the_kl_of_gaussian_lines_is_the_closed_form():
    # A linear trunk (slope 1) makes Gaussian h, so weights are Gaussian.
    shapes: Shapes = {"weight": torch.Size([30, 20])}
    network = nn.Linear(20, 30, bias=False)
    posterior = bbh.methods.bayes_by_hypernet(
        network,
        bbh.likelihoods.Gaussian(1.0),
        Normal(0.8),
        generator=Directions(slope=1.0, spread=3.0),
    )
    with torch.no_grad():
        many = posterior.weights.sample(20000)["weight"]
        exact = normal_kl(many.mean(0), many.std(0), Normal(0.8)).item()
        costs = [
            posterior.weights.cost(posterior.weights.sample(1), posterior.prior).complexity
            for _ in range(400)
        ]
    # The estimator's bias for a Gaussian weight, from 64 draws, is about a hundredth of a nat.
    assert torch.stack(costs).mean().item() == pytest.approx(exact, abs=0.05 * 600)
    assert shapes == posterior.weights.shapes


def test_a_step_makes_only_the_draws_that_the_network_sees():
    posterior = bbh.methods.bayes_by_hypernet(
        nn.Linear(3, 2), bbh.likelihoods.Categorical(), generator=Directions()
    )
    assert posterior.weights.draws_per_step() == 5
    assert posterior.weights.draws_per_step(2) == 2
    batch = (torch.randn(8, 3), torch.arange(8) % 2)
    # One draw is enough, where the estimator alone would ask for ten and refuse one.
    energy = bbh.free_energy(posterior, batch, num_data=8, num_samples=1, likelihood_samples=1)
    energy.total.backward()
    assert all(one.grad.isfinite().all() for one in posterior.weights.parameters())


@pytest.mark.parametrize(
    "divergence",
    [
        bbh.divergences.JointEntropy(),
        bbh.divergences.NearestNeighbour(),
        bbh.divergences.Adversarial(),
    ],
)
def test_other_divergences_take_draws_of_all_weights(divergence):
    posterior = bbh.methods.bayes_by_hypernet(
        nn.Linear(3, 2),
        bbh.likelihoods.Categorical(),
        generator=Directions(),
        divergence=divergence,
    )
    assert posterior.weights.samples_per_step == 10
    cost = posterior.weights.cost(posterior.weights.sample(10), posterior.prior)
    assert cost.complexity.isfinite()


def test_other_generators_have_no_lines():
    generator = bbh.generators.LowRank().build(values_of(ODD_SHAPES), GaussianNoise(2))
    assert not generator.has_lines
    with pytest.raises(NotImplementedError, match="LowRankKernels does not move"):
        generator.lines(torch.randn(2, len(ODD_SHAPES), 2))


def test_large_networks_take_it_by_default():
    wide: Shapes = {"weight": torch.Size([1500, 1500])}
    assert bbh.generators.default(wide) == Directions()
    assert isinstance(bbh.generators.default(ODD_SHAPES), bbh.generators.LayerWise)


@pytest.mark.parametrize(
    ("outputs", "freeze_rest", "kind"),
    [
        (101, True, Directions),
        (100, True, bbh.generators.LayerWise),  # a last layer, say
        (101, False, bbh.generators.LayerWise),  # the rest is trained too, as point estimates
        (1001, True, bbh.generators.LayerWise),  # most of the network is Bayesian
    ],
)
def test_adapters_of_a_frozen_network_take_it_by_default(outputs, freeze_rest, kind):
    network = torch.nn.Sequential(
        torch.nn.Linear(800, 1000, bias=False), torch.nn.Linear(1000, outputs, bias=False)
    )
    posterior = bbh.methods.bayes_by_hypernet(
        network, bbh.likelihoods.Categorical(), bayesian="1", freeze_rest=freeze_rest
    )
    assert isinstance(posterior.chosen["generator"], kind)
    if kind is Directions:
        trained = sum(value.numel() for value in posterior.parameters())
        assert trained < 2.1 * 1000 * outputs


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"spread": 0.0}, "spread"), ({"hidden": ()}, "hidden"), ({"hidden": (0,)}, "hidden")],
)
def test_impossible_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Directions(**wrong)


def compare_lines(compute, device: str = "cpu") -> None:
    """The sums and slopes of one tensor against autograd in double precision."""
    torch.manual_seed(0)
    for number in (1, 33, 4096, 9001):
        m, s = torch.randn(2, number, device=device)
        s[0] = 0.0
        # A column of a wider table: its two entries are not neighbours in memory.
        moments = torch.rand(2, 3, device=device)[:, 1]
        out = torch.full((2, number), torch.nan, device=device)
        found = compute(m, s, out[0], out[1], moments, 1.7, 1e-2)
        exact_m, exact_s = (one.double().requires_grad_() for one in (m, s))
        logs = (exact_s.square() + 1e-4).log().sum() / 2
        products = [exact_m.square().sum(), (exact_m * exact_s).sum(), exact_s.square().sum()]
        sums = torch.stack([*(1.7 * one for one in products), logs])
        first, second = moments.double()
        total = (sums[0] + 2 * first * sums[1] + second * sums[2]) / 2 - logs
        slopes = torch.stack(torch.autograd.grad(total, (exact_m, exact_s)))
        torch.testing.assert_close(found.double(), sums.detach(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(out.double(), slopes, rtol=1e-4, atol=1e-4)


def test_blocks_agree_with_autograd(monkeypatch):
    monkeypatch.setattr(lines_cost, "_BLOCK", 1000)
    compare_lines(lines_cost._sums_and_slopes)


def test_kernel_agrees_with_autograd():
    code = """
from bbh.divergences.lines_triton import sums_and_slopes
from generators.test_directions import compare_lines
compare_lines(sums_and_slopes)
print("agreed")
"""
    assert run_interpreted(code).strip() == "agreed"
