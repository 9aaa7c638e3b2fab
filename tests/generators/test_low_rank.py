"""Low-rank generators: weights against the formula, sizes by hand, and where weights start."""

import math

import pytest
import torch
from torch import Tensor, nn

import bbh
from bbh.generators import LowRank
from bbh.noise import GaussianNoise
from bbh.samples import Params, Shapes
from scenarios import LeNet, SmallLeNet, TransformerNet

# A kernel, a bias, a matrix with one row, one with one column, and a single number.
ODD_SHAPES: Shapes = {
    "kernel": torch.Size([6, 3, 2, 2]),
    "bias": torch.Size([6]),
    "row": torch.Size([1, 5]),
    "column": torch.Size([5, 1]),
    "number": torch.Size([]),
}


def values_of(shapes: Shapes) -> Params:
    torch.manual_seed(0)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def made_by_hand(generator: nn.Module, noise: Tensor) -> Params:
    """M + Σ_k a_k u_k v_kᵀ, term by term in double precision, from the stored parameters."""
    state = {name: value.double() for name, value in generator.state_dict().items()}
    tables = {part: generator.get_submodule(part)() for part in ("means", "left", "right")}
    weights: Params = {}
    for group, name in enumerate(tables["means"]):
        hidden = noise[:, group].double()
        for layer in range(2):
            hidden = hidden @ state[f"trunk.layers.{layer}.weight"].T
            hidden = hidden + state[f"trunk.layers.{layer}.bias"]
            hidden = torch.where(hidden > 0, hidden, 0.1 * hidden)
        terms = slice(3 * group, 3 * group + 3)
        factors = hidden @ state["trunk.output.weight"][terms].T
        factors = factors + state["trunk.output.bias"][terms]
        factors = factors * state["gain"][terms]
        mean, left = tables["means"][name].double(), tables["left"][name].double()
        draws: list[Tensor] = []
        for draw in factors:
            total = mean.clone().flatten()
            for term, factor in enumerate(draw):
                part = left[:, term]
                if name in tables["right"]:
                    part = torch.outer(part, tables["right"][name][:, term].double()).flatten()
                total += factor * part
            draws.append(total.view(mean.shape))
        weights[name] = torch.stack(draws)
    return weights


def test_weights_are_means_and_a_sum_of_outer_products():
    generator = LowRank(rank=3).build(values_of(ODD_SHAPES), GaussianNoise(2))
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    noise = torch.randn(4, len(ODD_SHAPES), 2)
    expected = made_by_hand(generator, noise)
    made = generator(noise)
    assert {name: value.shape[1:] for name, value in made.items()} == ODD_SHAPES
    for name, value in made.items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shapes", [ODD_SHAPES, {"only": torch.Size([7, 4])}])
def test_the_number_of_parameters_is_known_before_building(shapes: Shapes):
    generator = LowRank(rank=5, hidden=(8,))
    built = generator.build(values_of(shapes), GaussianNoise(3))
    counted = sum(parameter.numel() for parameter in built.parameters())
    assert generator.num_parameters(shapes, 3) == counted


def test_size_of_lenets_generator_counted_by_hand():
    shapes = {name: value.shape for name, value in LeNet().named_parameters()}
    sides = (20 + 25) + 20 + (50 + 500) + 50 + (500 + 800) + 500 + (10 + 500) + 10
    trunk = (4 + 1) * 16 + (16 + 1) * 32 + (32 + 1) * 16 * 8
    assert LowRank().num_parameters(shapes, 4) == 431_080 + 16 * sides + trunk


def test_weights_start_around_the_networks_own_with_the_asked_spread():
    torch.manual_seed(1)
    network = SmallLeNet()
    values = {name: value.detach() for name, value in network.named_parameters()}
    generator = LowRank(spread=0.5).build(values, GaussianNoise(4))
    draws = generator(torch.randn(4000, len(values), 4))
    for name, value in values.items():
        fan_in = math.prod(values[f"{name.rpartition('.')[0]}.weight"].shape[1:])
        scale = 0.5 / math.sqrt(fan_in)
        spread = draws[name].std(0)
        # The centre was measured with 256 draws of noise, so it strays by a sixteenth.
        assert ((draws[name].mean(0) - value).abs() < 0.4 * spread).all()
        # Sums of terms that depend on each other, since all come from the same features.
        assert spread.pow(2).mean().sqrt().item() == pytest.approx(scale, rel=0.35)


def test_a_few_steps_of_adam_change_the_spread_of_weights():
    torch.manual_seed(3)
    values = {"kernel": torch.randn(30, 20), "bias": torch.randn(30)}
    generator = LowRank().build(values, GaussianNoise(4))
    noise = torch.randn(500, len(values), 4)
    before = {name: draws.std(0).mean() for name, draws in generator(noise).items()}
    optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
    for _ in range(50):
        optimizer.zero_grad()
        sum(draws.var(0).sum() for draws in generator(noise).values()).backward()  # type: ignore[union-attr]
        optimizer.step()
    for name, draws in generator(noise).items():
        assert draws.std(0).mean() < 0.7 * before[name]


def test_noise_moves_only_its_own_tensor():
    generator = LowRank().build(values_of(ODD_SHAPES), GaussianNoise(2))
    noise = torch.randn(1, len(ODD_SHAPES), 2)
    other = noise.clone()
    other[:, 1] += 1
    before, after = generator(noise), generator(other)
    assert [name for name in before if not torch.equal(before[name], after[name])] == ["bias"]


def test_a_posterior_with_a_low_rank_generator_trains_and_comes_back_from_its_file(tmp_path):
    torch.manual_seed(2)
    inputs = torch.randn(200, 3)
    labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, labels), 50)
    network = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 2))
    posterior = bbh.methods.bayes_by_hypernet(
        network, bbh.likelihoods.Categorical(), generator=LowRank(rank=8)
    )
    bbh.fit(posterior, data, epochs=60, learning_rate=0.01, progress=False)
    assert bbh.evaluate(posterior, data, num_samples=50)["error"] < 20  # one half by chance
    bbh.save(posterior, tmp_path / "posterior.safetensors")
    loaded = bbh.load(tmp_path / "posterior.safetensors", network)
    ours, theirs = posterior.state_dict(), loaded.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_derivatives_for_the_joint_entropy_agree_with_autograd():
    generator = LowRank(rank=4).build(values_of(ODD_SHAPES), GaussianNoise(2)).double()
    noise = torch.randn(1, len(ODD_SHAPES), 2, dtype=torch.float64)
    for group, (name, gram) in enumerate(
        zip(ODD_SHAPES, generator.jacobian_gram(noise)[0], strict=True)
    ):

        def of_noise(z: Tensor, group: int = group, name: str = name) -> Tensor:
            return generator(noise.clone().index_put((torch.tensor(0), torch.tensor(group)), z))[
                name
            ].flatten()

        jacobian = torch.autograd.functional.jacobian(of_noise, noise[0, group])
        torch.testing.assert_close(gram, jacobian.T @ jacobian)  # type: ignore[operator]


def test_layers_of_a_transformer_are_covered():
    network = TransformerNet()
    values = {name: value.detach() for name, value in network.named_parameters()}
    made = LowRank(rank=2).build(values, GaussianNoise(1))(torch.randn(2, len(values), 1))
    assert {n: v.shape[1:] for n, v in made.items()} == {n: v.shape for n, v in values.items()}


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"rank": 0}, "rank=0"), ({"hidden": ()}, "hidden"), ({"spread": 0.0}, "spread")],
)
def test_settings_that_cannot_work_are_refused(settings: dict, named: str):
    with pytest.raises(ValueError, match=named):
        LowRank(**settings)
