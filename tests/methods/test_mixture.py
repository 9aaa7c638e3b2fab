"""Mixtures: members take turns, are trained as if each were alone, and cover several modes."""

import math
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.likelihoods import Categorical, Gaussian
from bbh.methods import MeanFieldNormal, Mixture, mixture
from bbh.prediction.draws import Draws
from bbh.priors import Normal
from methods.mixed import CRITIC, MAP, images, trained
from scenarios import METHODS, SmallLeNet, mlp


def points(*values: float) -> Mixture:
    """A mixture of Gaussians so narrow that a draw tells its member."""
    return Mixture([MeanFieldNormal({"w": torch.tensor([one])}, 1e-3) for one in values])


def member_of(draws: bbh.Samples) -> list[int]:
    return draws["w"].flatten().round().int().tolist()


# --- The cost --------------------------------------------------------------------------------


def normals(locs: list[float], scales: list[float]) -> Mixture:
    return Mixture(
        [
            MeanFieldNormal({"w": torch.tensor([loc], dtype=torch.float64)}, scale)
            for loc, scale in zip(locs, scales, strict=True)
        ]
    )


def divergence_by_quadrature(locs: list[float], scales: list[float]) -> float:
    """KL of a mixture of Gaussians from N(0, 1)."""
    grid = torch.linspace(-60, 60, 400_001, dtype=torch.float64)
    loc, scale = (torch.tensor([one], dtype=torch.float64).T for one in (locs, scales))
    log_q = torch.distributions.Normal(loc, scale).log_prob(grid).logsumexp(0) - math.log(len(locs))
    log_p = torch.distributions.Normal(torch.zeros_like(grid), 1.0).log_prob(grid)
    return torch.trapezoid(log_q.exp() * (log_q - log_p), grid).item()


@pytest.mark.parametrize(
    ("locs", "scales", "excess"),
    [
        ([1.0, 1.0, 1.0], [0.5, 0.5, 0.5], 0.0),  # members that are the same
        ([-20.0, 0.0, 20.0], [1.0, 0.5, 2.0], math.log(3)),  # members that do not overlap
        ([-1.0, 0.5], [0.7, 1.3], None),  # in between
    ],
)
def test_the_cost_exceeds_the_kl_by_what_a_draw_tells_about_its_member(locs, scales, excess):
    weights = normals(locs, scales)
    cost = weights.cost(weights.sample(len(locs)), Normal(1.0)).complexity.item()
    exact = divergence_by_quadrature(locs, scales)
    assert exact - 1e-9 <= cost <= exact + math.log(len(locs)) + 1e-9
    if excess is not None:
        assert cost - exact == pytest.approx(excess, abs=1e-8)


def test_draws_have_the_moments_of_the_mixture():
    locs, scales = [-2.0, 0.0, 3.0], [0.5, 1.0, 2.0]
    draws = normals(locs, scales).sample(30_000)["w"]
    mean = sum(locs) / 3
    variance = sum(s**2 + m**2 for m, s in zip(locs, scales, strict=True)) / 3 - mean**2
    assert draws.mean().item() == pytest.approx(mean, abs=0.05)
    assert draws.var().item() == pytest.approx(variance, rel=0.02)


# --- Turns -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(1, 14))
def test_no_member_is_repeated_before_all_are_used(number):
    drawn = member_of(points(0.0, 1.0, 2.0, 3.0).sample(number))
    assert len(drawn) == number
    for first in range(0, number, 4):
        one_round = drawn[first : first + 4]
        assert len(set(one_round)) == len(one_round)


def test_the_members_left_out_are_random():
    weights = points(0.0, 1.0, 2.0)
    left_out = Counter(3 - sum(member_of(weights.sample(2))) for _ in range(300))
    assert set(left_out) == {0, 1, 2}
    assert min(left_out.values()) > 60


def test_any_first_part_of_the_draws_is_even():
    draws = points(0.0, 1.0, 2.0).sample(9)
    assert Counter(member_of(draws.take(slice(6)))) == {0: 2, 1: 2, 2: 2}
    later = draws.take(slice(4, 9)).take(slice(1, 4))
    assert later.num_samples == 3
    assert torch.equal(later["w"], draws["w"][5:8])
    with pytest.raises(ValueError, match="side by side"):
        draws.take(slice(0, 9, 2))


class Constant(nn.Module):
    """Has one weight, and gives it back for every input."""

    def __init__(self, start: float = 0.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([start]))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.w.expand(len(inputs), 1)


def constants(number: int, method: Callable = MAP, **arguments) -> bbh.Posterior:
    """A mixture whose k-th member predicts k."""
    starts = iter(range(number))
    make = lambda: Constant(float(next(starts)))  # noqa: E731
    return mixture(
        make(),
        Gaussian(0.1),
        method=method,
        num_members=number,
        make_network=make,
        **arguments,
    )


@pytest.mark.parametrize("limit", [2**30, 1])
def test_predictions_use_members_evenly_however_little_memory_there_is(limit):
    method = partial(bbh.methods.bayes_by_backprop, initial_scale=1e-3)
    posterior = constants(3, method).eval()
    for number, counts in ((12, {4}), (13, {4, 5}), (2, {1})):
        draws = Draws(posterior, number, None, limit)
        passes = [torch.cat([some["w"] for some in draws.at_most(5)]) for _ in range(2)]
        assert torch.equal(*passes)
        used = Counter(passes[0].flatten().round().int().tolist())
        assert sum(used.values()) == number
        assert set(used.values()) == counts
    predictive = bbh.predict(posterior, torch.zeros(1, 1), 30)
    assert predictive.mean.item() == pytest.approx(1.0, abs=1e-3)
    assert predictive.epistemic_std.item() == pytest.approx((2 / 3) ** 0.5, abs=1e-3)


def test_one_number_for_each_attribute():
    def weights(member: Callable) -> Mixture:
        return mixture(SmallLeNet(), Categorical(), method=member, num_members=3).weights

    hypernet = weights(bbh.methods.bayes_by_hypernet)
    assert (hypernet.samples_per_step, hypernet.likelihood_samples, hypernet.turns) == (30, 15, 3)
    assert hypernet.training_defaults.learning_rate == 3e-3
    assert (hypernet.num_distinct, hypernet.num_useful(7)) == (None, 7)
    parts = [len(one.factored_parameters()) for one in hypernet.members]
    assert len(hypernet.factored_parameters()) == sum(parts) > 0
    assert hypernet.noise_groups() == {}
    point = weights(MAP)
    assert (point.samples_per_step, point.likelihood_samples, point.num_useful(100)) == (3, None, 3)
    assert point.random_shapes() == point.shapes
    assert not point.statistics_differ
    ensembles = weights(partial(bbh.methods.deep_ensemble, num_members=2))
    assert (ensembles.samples_per_step, ensembles.num_useful(100)) == (6, 6)
    assert len(set(ensembles.sample(6)["fc2.bias"].sum(1).tolist())) == 6
    critic = weights(CRITIC)
    assert critic.auxiliary_steps == critic.members[0].auxiliary_steps > 0
    alone = mixture(mlp(), Categorical(), num_members=1).weights
    assert alone.noise_groups() == alone.members[0].noise_groups() != {}


def test_the_end_of_an_epoch_reaches_every_member():
    posterior = mixture(
        mlp(), Categorical(), method=bbh.methods.stochastic_weight_averaging, num_members=3
    )
    posterior.weights.end_epoch()
    posterior.weights.end_epoch()
    assert [one.num_collected for one in posterior.weights.members] == [2, 2, 2]


# --- Files -----------------------------------------------------------------------------------


FILES = METHODS | {
    "two of two": partial(bbh.methods.deep_ensemble, num_members=2),
    "part": partial(bbh.methods.bayes_by_hypernet, bayesian="fc2"),
    "critic": CRITIC,
}


@pytest.mark.parametrize("member", FILES.values(), ids=FILES.keys())
def test_one_file_holds_all_members(member, tmp_path):
    posterior = mixture(SmallLeNet(), Categorical(), method=member, num_members=3)
    bbh.save(posterior, tmp_path / "file")
    loaded = bbh.load(tmp_path / "file", SmallLeNet())
    assert loaded.recipe == posterior.recipe
    predictions = []
    for one in (posterior, loaded):
        torch.manual_seed(1)
        predictions.append(bbh.predict(one, images(), 7).mean)
    assert torch.equal(*predictions)


def test_a_file_keeps_what_the_method_chose():
    posterior = mixture(mlp(), Categorical(), num_members=2, num_samples=4, bayesian="0")
    arguments = posterior.recipe.arguments
    member = arguments["method"]
    assert member.method == "bayes_by_hypernet"
    assert member.arguments["num_samples"] == arguments["num_samples"] == 4
    assert member.arguments["bayesian"] == arguments["bayesian"] == ["0.weight", "0.bias"]
    assert isinstance(member.arguments["generator"], bbh.generators.LayerWise)
    assert arguments["make_network"] is None


def test_a_file_names_what_it_cannot_hold(tmp_path):
    class Own(bbh.generators.LayerWise):
        pass

    posterior = mixture(mlp(), Categorical(), num_members=2, generator=Own((4,)))
    bbh.save(posterior, tmp_path / "file")
    with pytest.raises(bbh.storage.StorageError, match=r"Own.*pass load\(…, "):
        bbh.load(tmp_path / "file", mlp())
    member = partial(bbh.methods.bayes_by_hypernet, generator=Own((4,)))
    loaded = bbh.load(tmp_path / "file", mlp(), method=member, generator=Own((4,)))
    assert loaded.weights.samples_per_step == 20


# --- What is refused -------------------------------------------------------------------------


def test_what_cannot_work_is_refused():
    network, likelihood = mlp(), Categorical()
    with pytest.raises(TypeError, match=r"bayes_by_hypernet: got an unexpected keyword.*'sampels'"):
        mixture(network, likelihood, sampels=3)
    with pytest.raises(ValueError, match="num_members=0: take at least one member"):
        mixture(network, likelihood, num_members=0)
    with pytest.raises(ValueError, match=r"these differ: 0\.bias, 0\.weight"):
        mixture(network, likelihood, make_network=lambda: nn.Sequential(nn.Linear(4, 3)))
    posterior = mixture(network, likelihood, num_members=2)
    batch = (torch.randn(6, 4), torch.arange(6) % 3)
    with pytest.raises(ValueError, match=r"num_samples=7: the 2 members.*multiple of 2"):
        bbh.free_energy(posterior, batch, num_data=6, num_samples=7)
    with pytest.raises(ValueError, match=r"likelihood_samples=1: the 2 members.*multiple of 2"):
        bbh.free_energy(posterior, batch, num_data=6, likelihood_samples=1)
    with pytest.raises(KeyError, match="do not know their members"):
        posterior.weights.cost(posterior.sample(4).values_only(), posterior.prior)


# --- Two modes -------------------------------------------------------------------------------


class Square(nn.Module):
    """Outputs w² x, so that w and −w explain data equally well."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.w)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.w.square() * inputs


def test_a_mixture_covers_both_modes():
    noise = 0.5
    inputs = torch.linspace(-1, 1, 20).unsqueeze(1)
    targets = 1.5 * inputs + noise * torch.randn(20, 1)
    grid = torch.linspace(-4, 4, 8001)
    squared = (targets - grid.square() * inputs).square().sum(0)
    exact = (-squared / (2 * noise**2) - grid.square() / 2).softmax(0)
    positive = exact[grid > 0] / exact[grid > 0].sum()
    mean = (positive * grid[grid > 0]).sum()
    std = (positive * (grid[grid > 0] - mean).square()).sum().sqrt()

    def drawn(posterior: bbh.Posterior) -> Tensor:
        trained(posterior, (inputs, targets), steps=150, rate=0.05)
        return posterior.weights.sample(6000)["w"].flatten().detach()

    member = partial(bbh.methods.bayes_by_backprop, initial_scale=0.1, num_samples=2)
    alone = drawn(member(Square(), Gaussian(noise)))
    assert alone.sign().mean().abs() > 0.99  # one of the two
    whole = mixture(Square(), Gaussian(noise), method=member, num_members=4)
    both = drawn(whole)
    share = (both > 0).float().mean().item()
    assert 0.1 < share < 0.9
    # Each of four members lies in one of the modes.
    assert share * 4 == pytest.approx(round(share * 4), abs=0.02)
    assert both.abs().mean().item() == pytest.approx(mean.item(), abs=0.05)
    assert both.abs().std().item() == pytest.approx(std.item(), rel=0.25)


def test_tuning_and_looking_take_mixtures():
    inputs = torch.randn(40, 4)
    loader = DataLoader(TensorDataset(inputs, torch.arange(40) % 3), batch_size=20)
    tuned = bbh.tune(
        lambda prior: mixture(mlp(), Categorical(), prior, method=MAP, num_members=2),
        loader,
        loader,
        epochs=1,
        scales=[0.1, 1.0],
        temperatures=[1.0],
    )
    assert tuned.posterior.weights.turns == 2
    posterior = mixture(mlp(), Categorical(), num_members=2)
    looked = bbh.inspect.look(posterior, inputs, num_samples=33)
    assert looked.num_samples == 33
    assert looked.num_weights == sum(one.numel() for one in mlp().parameters())
