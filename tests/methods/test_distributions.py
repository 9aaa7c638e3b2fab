"""Weight distributions: the draws they promise and the nats they charge."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import bbh
from bbh.distribution import Cost, WeightDistribution
from bbh.divergences import Adversarial, NearestNeighbour, NearestNeighbourEntropy
from bbh.generators import LayerWise
from bbh.methods import (
    DropoutMasks,
    FlowKind,
    Implicit,
    MeanFieldNormal,
    MultiplicativeFlow,
    Particles,
    Product,
)
from bbh.methods.flow_steps import draw_masks
from bbh.methods.flows import MultiplierFlow
from bbh.noise import GaussianNoise
from bbh.priors import Laplace, Normal, Prior, Sampled, ScaleMixture
from bbh.samples import Samples, flatten
from scenarios import SmallLeNet

# --- Mean field -----------------------------------------------------------------------------


def test_mean_field_draws_its_marginals_and_pays_their_kl():
    loc = {"weight": torch.randn(2, 3), "bias": torch.randn(2), "scalar": torch.tensor(0.7)}
    weights = MeanFieldNormal(loc, initial_scale=0.3)
    samples = flatten(weights.eval().sample(20_000), weights.shapes)
    means = torch.cat([value.flatten() for value in loc.values()])
    # 20 000 draws: means to 0.3/√20 000 = 0.002, variances to 1 %.
    torch.testing.assert_close(samples.mean(0), means, rtol=0, atol=0.01)
    torch.testing.assert_close(torch.cov(samples.T), 0.09 * torch.eye(9), rtol=0.05, atol=0.005)
    expected = td.kl_divergence(td.Normal(means, 0.3), td.Normal(0.0, 2.0)).sum()
    cost = weights.cost(weights.sample(1), Normal(2.0))
    torch.testing.assert_close(cost.complexity, expected)
    assert cost.auxiliary == 0


# --- Particles ------------------------------------------------------------------------------


def numbered(num_members: int, **options: object) -> Particles:
    members = {
        "a": torch.arange(float(num_members)).view(-1, 1).expand(-1, 2).clone(),
        "b": torch.arange(float(num_members)),
    }
    return Particles(members, **options)  # type: ignore[arg-type]


def test_particles_repeat_none_before_all_are_used():
    weights = numbered(4)
    for num_samples in (1, 2, 3, 4, 6, 8, 11):
        samples = weights.sample(num_samples)
        numbers = samples["b"].long()
        assert len(numbers) == num_samples
        for first in range(0, num_samples, 4):
            some = numbers[first : first + 4]
            assert len(some.unique()) == len(some)
        # A draw is one member in every tensor.
        torch.testing.assert_close(samples["a"][:, 1].long(), numbers)


def test_particles_pay_the_mean_negative_log_prior():
    weights = numbered(3)
    cost = weights.cost(weights.sample(3), Normal(2.0)).complexity
    values = torch.tensor([0.0, 1.0, 2.0])
    torch.testing.assert_close(cost, -3 * td.Normal(0.0, 2.0).log_prob(values).mean())


def test_particles_pay_for_the_penalised_tensors_only():
    weights = numbered(3, penalised=["b"])
    cost = weights.cost(weights.sample(3), Normal()).complexity
    values = torch.tensor([0.0, 1.0, 2.0])
    torch.testing.assert_close(cost, -td.Normal(0.0, 1.0).log_prob(values).mean())
    free = numbered(3, penalised=())
    assert free.cost(free.sample(3), Normal()).complexity == 0
    free.check_prior(Sampled(lambda n: {}))  # it does not look at the prior


@pytest.mark.parametrize("num_samples", [1, 3, 5, 7])
def test_an_ensemble_draws_whole_members(num_samples: int):
    # Kernels, normalisation layers and running statistics of one member belong together.
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    posterior = bbh.methods.deep_ensemble(network, bbh.likelihoods.Gaussian(), num_members=5)
    with torch.no_grad():
        for tensor in [*posterior.weights.parameters(), *posterior.weights.buffers()]:
            tensor += torch.arange(5).view(-1, *[1] * (tensor.dim() - 1)).to(tensor) * 100
    samples = posterior.sample(num_samples)
    assert "2.running_mean" in samples
    numbers = [
        (value.reshape(num_samples, -1)[:, 0].double() / 100).round() for value in samples.values()
    ]
    assert all(torch.equal(number, numbers[0]) for number in numbers)


def test_an_ensembles_normalisation_layers_know_no_prior():
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    posterior = bbh.methods.deep_ensemble(network, bbh.likelihoods.Gaussian(), num_members=2)
    samples = posterior.sample(2)
    cost = posterior.weights.cost(samples, Normal()).complexity
    kernels = flatten(samples, {"0.weight": torch.Size([4, 3]), "0.bias": torch.Size([4])})
    torch.testing.assert_close(cost, -td.Normal(0.0, 1.0).log_prob(kernels).sum(1).mean())


# --- Dropout --------------------------------------------------------------------------------


def test_dropout_switches_whole_input_units_off():
    kernel, bias = torch.randn(5, 3, 2, 2), torch.randn(5)
    transposed = torch.randn(3, 5, 2, 2)
    kernels = {"k": kernel, "b": bias, "t": transposed}
    weights = DropoutMasks(kernels, {"k": 1, "t": 0}, rate=0.2).eval()
    samples = weights.sample(5000)
    torch.testing.assert_close(samples["b"], bias.expand(5000, 5))
    for name, axis in (("k", 1), ("t", 0)):
        ratio = (samples[name] / kernels[name]).movedim(axis + 1, 1).flatten(2)
        # One of two values, the same for all weights of a unit.
        torch.testing.assert_close(ratio, ratio[:, :, :1].expand_as(ratio))
        units = ratio[:, :, 0]
        torch.testing.assert_close(units, 1.25 * (units > 0))
        # 15 000 coins: 0.8 ± 0.013 at four standard errors; units are independent.
        assert (units > 0).float().mean().item() == pytest.approx(0.8, abs=0.013)
        assert (torch.corrcoef(units.T) - torch.eye(3)).abs().max() < 0.06


def test_dropout_masks_every_unit_of_a_grouped_convolution():
    # A depthwise kernel [4, 1, 3, 3] reads four units, not one.
    network = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 3, groups=4))
    posterior = bbh.methods.mc_dropout(network, bbh.likelihoods.Gaussian(), rate=0.5).eval()
    kept = (posterior.sample(400)["1.weight"] != 0).flatten(2).all(2)
    assert len(kept.unique(dim=0)) == 16
    # 1600 coins.
    assert kept.float().mean().item() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("prior", [Normal(0.5), Normal(1.0, loc=0.3), Laplace(), ScaleMixture()])
def test_dropout_pays_the_expected_negative_log_prior(prior: Prior):
    kernels = {"k": 0.3 * torch.randn(2, 3), "b": torch.randn(2)}
    weights = DropoutMasks(kernels, {"k": 1}, rate=0.3).eval()
    samples = weights.sample(20_000)
    terms = -prior.log_density(samples, weights.shapes)
    exact = weights.cost(samples, prior).complexity
    # The average over draws, to four of its standard errors.
    assert (terms.mean() - exact).abs() < 4 * terms.std() / math.sqrt(20_000)


def test_dropout_pays_the_known_l2_surrogate():
    kernel = torch.randn(4, 3)
    weights = DropoutMasks({"k": kernel}, {"k": 1}, rate=0.25)
    cost = weights.cost(weights.sample(1), Normal(2.0)).complexity
    constant = 12 * math.log(2.0 * math.sqrt(2 * math.pi))
    # keep/2 · ‖kernel/keep‖² / scale²
    surrogate = 0.75 / 2 * (kernel / 0.75).square().sum() / 4
    torch.testing.assert_close(cost, surrogate + constant)


# --- Multiplicative normalising flows -------------------------------------------------------

MEAN, SCALE, Z_LOC, Z_VARIANCE = 0.8, 0.3, 1.2, 0.25


def one_weight(steps: int) -> tuple[MultiplicativeFlow, MultiplierFlow]:
    """w = z · 0.8 + 0.3 · ε, z ~ N(1.2, 0.25) through ``steps`` steps."""
    weights = MultiplicativeFlow({"w": torch.tensor([[MEAN]])}, initial_scale=SCALE, steps=steps)
    weights.double()
    multiplier = weights.multipliers["z/w"]
    assert isinstance(multiplier, MultiplierFlow)
    nn.init.constant_(multiplier.loc, Z_LOC)
    nn.init.constant_(multiplier.log_variance, math.log(Z_VARIANCE))
    nn.init.constant_(multiplier.projection, 0.9)
    nn.init.constant_(multiplier.reverse_loc, 1.5)
    nn.init.constant_(multiplier.reverse_log_precision, 2.0)
    return weights, multiplier


def mean_bound(weights: MultiplicativeFlow, repetitions: int) -> tuple[float, float]:
    """Mean of the stochastic bound, and its standard error."""
    with torch.no_grad():
        bounds = torch.stack(
            [weights.cost(weights.sample(1), Normal()).complexity for _ in range(repetitions)]
        )
    return bounds.mean().item(), bounds.std().item() / math.sqrt(repetitions)


@pytest.mark.slow
def test_flow_bound_exceeds_the_kl_by_the_gap_of_the_auxiliary():
    # Without flow steps everything is Gaussian: w ~ N(z̄·m, v·m² + s²), and
    # bound = KL(q(w)‖p) + E_w KL(q(z | w)‖r(z | w)).
    weights, _ = one_weight(steps=0)
    variance = Z_VARIANCE * MEAN**2 + SCALE**2
    marginal = td.Normal(torch.tensor(Z_LOC * MEAN).double(), math.sqrt(variance))
    kl = td.kl_divergence(marginal, td.Normal(torch.tensor(0.0).double(), 1.0)).item()
    w = torch.linspace(-4, 6, 20_001).double()
    precision = 1 / Z_VARIANCE + MEAN**2 / SCALE**2
    posterior = td.Normal((Z_LOC / Z_VARIANCE + MEAN * w / SCALE**2) / precision, precision**-0.5)
    summary = torch.tanh(0.9 * w)
    auxiliary = td.Normal(1.5 * summary, (-0.5 * 2.0 * summary).exp())
    gaps = td.kl_divergence(posterior, auxiliary)
    gap = torch.trapezoid(marginal.log_prob(w).exp() * gaps, w).item()
    assert gap > 0.3  # a gap worth measuring
    mean, error = mean_bound(weights, 4000)
    assert error < 0.03
    assert mean == pytest.approx(kl + gap, abs=4 * error)


@pytest.mark.slow
def test_flow_bound_holds_with_flow_steps():
    # q(w) = ∫ N(w; z·m, s²) q(z) dz on a grid, with the flow of q and of r far from the identity.
    weights, multiplier = one_weight(steps=2)
    for chain, scale in ((multiplier.flow, 1.0), (multiplier.reverse_flow, 0.5)):
        for parameter in chain.parameters():
            nn.init.normal_(parameter, std=scale)
    with torch.no_grad():
        noise = torch.linspace(-7, 7, 2001).double()
        base = td.Normal(torch.tensor(0.0).double(), 1.0).log_prob(noise).exp()
        base = base / base.sum()
        start = (Z_LOC + math.sqrt(Z_VARIANCE) * noise).unsqueeze(1)
        (masks,) = draw_masks([multiplier.flow], start.unsqueeze(0))
        z = multiplier.flow(start, masks)[0].squeeze()
        w = torch.linspace(z.min().item() - 3, z.max().item() + 3, 8001).double()
        density = td.Normal(z * MEAN, SCALE).log_prob(w.unsqueeze(1)).exp() @ base
        assert torch.trapezoid(density, w).item() == pytest.approx(1, abs=1e-4)
        log_ratio = density.clamp(min=1e-300).log() + 0.5 * w.square() + 0.5 * math.log(2 * math.pi)
        kl = torch.trapezoid(density * log_ratio, w).item()
    mean, error = mean_bound(weights, 2000)
    assert mean > kl - 3 * error
    # The draws are those of that q.
    drawn = weights.eval().sample(50_000)["w"].flatten()
    expected = torch.trapezoid(density * w, w).item()
    assert drawn.mean().item() == pytest.approx(expected, abs=0.02)


def test_flow_bound_is_the_same_for_any_number_of_draws():
    weights = MultiplicativeFlow(
        {"w": torch.randn(3, 4), "b": torch.randn(3)}, kind=FlowKind.PLANAR
    )
    multiplier = weights.multipliers["z/w"]
    # No noise in z, and an r that does not look at the weights: nothing is left to chance.
    nn.init.constant_(multiplier.log_variance, -40.0)
    nn.init.zeros_(multiplier.projection)
    one, three = (weights.cost(weights.sample(n), Normal()).complexity for n in (1, 3))
    torch.testing.assert_close(one, three)


@pytest.mark.parametrize("kind", list(FlowKind))
def test_gradients_of_flow_bound_and_draw_are_their_slopes(kind: FlowKind):
    values = {"matrix": torch.randn(3, 4), "conv": torch.randn(2, 1, 2, 2), "bias": torch.randn(3)}
    weights = MultiplicativeFlow(values, initial_scale=0.2, kind=kind).double()

    def value() -> torch.Tensor:
        torch.manual_seed(5)  # the same noise and masks every time
        samples = weights.sample(1)
        drawn = sum(one.as_subclass(torch.Tensor).sin().sum() for one in samples.values())
        return weights.cost(samples, Normal(0.7)).complexity + drawn

    value().backward()
    for name, parameter in weights.named_parameters():
        direction, start, step = torch.randn_like(parameter), parameter.detach().clone(), 1e-5
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.copy_(start + sign * step * direction)
                ends.append(value().item())
                parameter.copy_(start)
        assert parameter.grad is not None, name
        slope = (parameter.grad * direction).sum().item()
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-6), name


def test_kernels_that_go_together_cost_what_they_cost_alone():
    # Planar flows and no noise in z: nothing is left to chance but the weights, which are given.
    values = {name: torch.randn(4, rows, 3) for name, rows in (("a", 1), ("b", 2), ("c", 5))}
    weights = MultiplicativeFlow(values, kind=FlowKind.PLANAR).double()
    for flow in weights.multipliers.values():
        nn.init.constant_(flow.log_variance, -80.0)
        for parameter in (flow.projection, flow.reverse_loc, flow.reverse_log_precision):
            nn.init.normal_(parameter)
    samples = weights.eval().sample(1)
    found = weights.cost(samples, Normal()).complexity
    alone = torch.zeros((), dtype=torch.float64)
    for name, value in values.items():
        other = MultiplicativeFlow({name: value}, kind=FlowKind.PLANAR).double()
        own = weights.state_dict()
        other.load_state_dict({key: own[key] for key in other.state_dict()})
        latents = {f"{what} of {name}" for what in ("z", "log q", "loc", "scale", "masks")}
        drawn = Samples(
            {name: samples[name]}, latents={latent: samples.latent(latent) for latent in latents}
        )
        alone = alone + other.cost(drawn, Normal()).complexity
    torch.testing.assert_close(found, alone)


def test_every_kernel_enters_the_flow_bound():
    # With an r that does not look at the weights, ∂bound/∂log scale = scale² − 1 for each
    # weight of each tensor: Gaussian KL to N(0, 1), convolutions included. The limit 0.5 of the
    # scale lets the share 1 − scale/limit through to the parameter behind it.
    values = {name: value.detach() for name, value in SmallLeNet().named_parameters()}
    weights = MultiplicativeFlow(values, initial_scale=0.2)
    for name, module in weights.multipliers.items():
        assert isinstance(module, MultiplierFlow), name
        nn.init.zeros_(module.reverse_loc)
        nn.init.zeros_(module.reverse_log_precision)
    weights.cost(weights.sample(1), Normal()).complexity.backward()
    parameters = dict(weights.raw_scale.named_parameters())
    assert len(parameters) == 8
    for parameter in parameters.values():
        assert parameter.grad is not None
        expected = torch.full_like(parameter, (0.2**2 - 1) * (1 - 0.2 / 0.5))
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-5)
    # One entry of z per input unit of a matrix, per filter of a convolution.
    sizes = {name: len(module.loc) for name, module in weights.multipliers.items()}
    assert sizes == {"z/conv1/weight": 4, "z/conv2/weight": 6, "z/fc1/weight": 6, "z/fc2/weight": 8}


@pytest.mark.parametrize("kind", list(FlowKind))
def test_flow_draws_scale_whole_units(kind: FlowKind):
    values = {"conv": torch.ones(3, 2, 2, 2), "matrix": torch.ones(3, 4)}
    weights = MultiplicativeFlow(values, initial_scale=1e-6, kind=kind).eval()
    samples = weights.sample(10)
    filters = samples["conv"].flatten(2)
    torch.testing.assert_close(filters, filters[:, :, :1].expand_as(filters), rtol=0, atol=1e-4)
    columns = samples["matrix"].transpose(1, 2)
    torch.testing.assert_close(columns, columns[:, :, :1].expand_as(columns), rtol=0, atol=1e-4)
    # Different units and different draws have different multipliers.
    assert filters[:, :, 0].std(0).min() > 0.01
    assert columns[:, :, 0].std(0).min() > 0.01


def test_flow_scales_respect_their_limit():
    weights = MultiplicativeFlow({"w": torch.zeros(2, 300)}, initial_scale=0.1, max_scale=0.5)
    # 60 000 draws of N(0, scale²): standard deviations to 1 %.
    assert weights.eval().sample(100)["w"].std().item() == pytest.approx(0.1, rel=0.02)
    nn.init.constant_(next(weights.raw_scale.parameters()), 9.0)
    # 600 draws of N(0, 0.5²): the standard deviation to 3 %.
    assert weights.eval().sample(1)["w"].std().item() == pytest.approx(0.5, rel=0.12)
    with pytest.raises(ValueError, match="max_scale"):
        bbh.methods.multiplicative_normalizing_flows(
            nn.Linear(2, 1), bbh.likelihoods.Gaussian(), initial_scale=0.5, max_scale=0.5
        )


def test_flow_accepts_priors_that_are_not_gaussian():
    weights = MultiplicativeFlow({"w": torch.randn(2, 3)}).double()
    samples = weights.eval().sample(1)
    mixture = weights.cost(samples, ScaleMixture((1.0, 1.0), (0.5, 0.5))).complexity
    normal = weights.cost(samples, Normal()).complexity
    # Same draw; the prior term is sampled instead of exact: w² varies by its noise of 0.01.
    assert mixture.item() == pytest.approx(normal.item(), abs=0.2)


# --- Implicit and products ------------------------------------------------------------------


def implicit(divergence: bbh.divergences.Divergence, num_samples: int = 5) -> Implicit:
    values = {"weight": torch.randn(2, 3), "bias": torch.randn(2), "scalar": torch.tensor(1.0)}
    noise = GaussianNoise(2)
    generator = LayerWise(hidden=(8,)).build(values, noise)
    return Implicit(generator, noise, divergence, num_samples)


def test_implicit_pays_the_divergence_of_its_samples():
    weights = implicit(NearestNeighbourEntropy())
    samples = weights.sample(5)
    expected = NearestNeighbourEntropy()(samples, weights.shapes, Normal()).complexity
    torch.testing.assert_close(weights.cost(samples, Normal()).complexity, expected)


def test_implicit_hands_over_the_critic():
    weights = implicit(Adversarial(steps=3, pretraining=7), num_samples=1)
    assert weights.auxiliary_steps == 2
    assert weights.pretraining_steps == 7
    cost = weights.cost(weights.sample(1), Normal())
    assert isinstance(cost.auxiliary, Tensor)
    # log 2 twice, for a fresh critic whose logits are near zero.
    assert cost.auxiliary.item() == pytest.approx(2 * math.log(2), abs=0.5)


class Charging(WeightDistribution):
    """One tensor of ones at a fixed price."""

    def __init__(self, name: str, price: float, auxiliary: float, distinct: int | None):
        super().__init__()
        self.shapes = {name: torch.Size([2])}
        self.price, self.auxiliary, self.num_distinct = price, auxiliary, distinct

    def sample(self, num_samples: int) -> Samples:
        return Samples({n: torch.ones(num_samples, *shape) for n, shape in self.shapes.items()})

    def cost(self, samples: Samples, prior: Prior) -> Cost:
        return Cost(torch.tensor(self.price), self.auxiliary)


def test_product_adds_costs_and_joins_samples():
    product = Product([Charging("a", 1.5, 0.25, 1), Charging("b", 2.0, 0.5, 4)])
    samples = product.sample(3)
    assert {name: value.shape for name, value in samples.items()} == {"a": (3, 2), "b": (3, 2)}
    assert product.cost(samples, Normal()) == Cost(torch.tensor(3.5), 0.75)
    assert product.num_distinct == 4
    assert Product([product, Charging("c", 0.0, 0.0, None)]).num_distinct is None
    with pytest.raises(ValueError, match="same tensors"):
        Product([product, Charging("a", 0.0, 0.0, None)])


def test_double_precision_survives_every_distribution():
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    batch = torch.randn(4, 2).double(), torch.randn(4, 1).double()
    likelihood = bbh.likelihoods.Gaussian()
    for make in (
        bbh.methods.maximum_a_posteriori,
        bbh.methods.deep_ensemble,
        bbh.methods.bayes_by_backprop,
        bbh.methods.mc_dropout,
        bbh.methods.multiplicative_normalizing_flows,
        bbh.methods.bayes_by_hypernet,
    ):
        posterior = make(network, likelihood).train()
        energy = bbh.free_energy(posterior, batch, num_data=4)
        assert energy.total.dtype == torch.float64
        energy.total.backward()


def test_sampled_priors_serve_nearest_neighbours():
    weights = implicit(NearestNeighbour())
    prior = Sampled(implicit(NearestNeighbour()).sample)
    weights.check_prior(prior)
    assert torch.isfinite(weights.cost(weights.sample(5), prior).complexity)


def test_draws_bring_along_what_their_cost_needs(monkeypatch):
    network = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    asked = []
    real = MeanFieldNormal.marginals

    def marginals(weights):
        asked.append(weights)
        return real(weights)

    monkeypatch.setattr(MeanFieldNormal, "marginals", marginals)
    posterior = bbh.methods.bayes_by_backprop(network, bbh.likelihoods.Categorical())
    batch = (torch.randn(6, 4), torch.arange(6) % 3)
    bbh.free_energy(posterior, batch, num_data=6).total.backward()
    # Once for the draws and their cost, although norms are another part of the product.
    assert len(asked) == 1


def test_draws_from_elsewhere_do_not_know_what_they_were_made_from():
    weights = MeanFieldNormal({"w": torch.randn(2, 3)})
    with pytest.raises(KeyError, match="do not know their 'loc'"):
        weights.cost(Samples({"w": torch.zeros(1, 2, 3)}), Normal())


def test_other_values_cost_what_they_cost():
    parts = [implicit(NearestNeighbourEntropy()), Particles({"norm": torch.ones(1, 2)})]
    weights = Product(parts)
    draws = weights.sample(5)
    before = weights.cost(draws, Normal()).complexity
    wider = Samples({name: 3 * value for name, value in draws.items()})
    found = weights.cost(wider, Normal()).complexity
    expected = sum(part.cost(wider, Normal()).complexity for part in parts)
    assert torch.equal(found, expected)
    assert not torch.equal(found, before)
    with pytest.raises(TypeError, match="item assignment"):
        draws["norm"] = wider["norm"]
