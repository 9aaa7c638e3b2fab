"""Generators: sizes counted by hand, every output used once, and where generated weights start."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bbh
from bbh.generators import (
    FromNetwork,
    Generator,
    Glorot,
    Head,
    Hypernetwork,
    Hypernetworks,
    LayerWise,
    Single,
    Sliced,
)
from bbh.generators.single import default_chunk
from bbh.methods import Implicit
from bbh.noise import GaussianNoise
from bbh.samples import Params, Shapes, flatten, size
from scenarios import LeNet, SmallLeNet, TransformerNet, mlp


def values_of(network: nn.Module) -> Params:
    return {name: value.detach() for name, value in network.named_parameters()}


def shapes_of(network: nn.Module) -> Shapes:
    return {name: value.shape for name, value in network.named_parameters()}


def build(generator: Generator, values: Params, dim: int = 2, shared: bool = False) -> Implicit:
    noise = GaussianNoise(dim, shared=shared)
    divergence = bbh.divergences.NearestNeighbourEntropy()
    return Implicit(generator.build(values, noise), noise, divergence)


def hypernetworks(generator: Hypernetworks) -> list[Hypernetwork]:
    return [one for one in generator.hypernetworks if isinstance(one, Hypernetwork)]


# --- Sizes ----------------------------------------------------------------------------------

LENET = shapes_of(LeNet())
# Between the first and the last layer: 64 → 256 → 512 with biases.
MIDDLE = 64 * 256 + 256 + 256 * 512 + 512


def test_lenet_has_the_papers_number_of_weights():
    assert size(LENET) == 500 + 20 + 25_000 + 50 + 400_000 + 500 + 5_000 + 10 == 431_080


def test_layerwise_generator_of_lenet_has_222_million_parameters():
    # Eight hypernetworks with inputs [z, 1]; 512 weights and a bias for each of all weights.
    trunks = 8 * ((1 + 1 + 1) * 64 + MIDDLE)
    by_hand = trunks + (512 + 1) * 431_080
    assert by_hand == 222_331_368
    assert LayerWise(initialization=Glorot()).num_parameters(LENET, 1) == by_hand


def test_single_generator_of_lenet_has_under_two_million_parameters():
    # 130 calls of 3316 outputs, inputs [z, onehot(130)].
    by_hand = (1 + 130 + 1) * 64 + MIDDLE + (512 + 1) * 3316
    assert by_hand == 1_857_780
    generator = Single(initialization=Glorot())
    assert generator.num_parameters(LENET, 1) == by_hand
    (head,) = generator.heads(LENET)
    assert (head.slices, head.outputs) == (130, 3316)
    assert 130 * 3316 == 431_080


def test_sliced_generator_of_lenet_has_two_and_a_half_million_parameters():
    slices = {"c1": 20, "c2": 50, "fc1": 500, "fc2": 10, "biases": 4 * 1}
    outputs = 25 + 500 + 800 + 500 + (20 + 50 + 500 + 10)
    by_hand = 8 * (2 * 64 + MIDDLE) + 64 * sum(slices.values()) + (512 + 1) * outputs
    assert by_hand == 2_457_957
    generator = Sliced(initialization=Glorot())
    assert generator.num_parameters(LENET, 1) == by_hand
    assert [head.slices for head in generator.heads(LENET)] == [20, 1, 50, 1, 500, 1, 10, 1]


def test_output_bias_per_weight_adds_exactly_the_missing_biases():
    for kind, outputs in ((LayerWise, 431_080), (Single, 3316), (Sliced, 2405)):
        plain, own = (
            kind(initialization=start).num_parameters(LENET, 8)
            for start in (Glorot(), FromNetwork())
        )
        assert own - plain == 431_080 - outputs


@pytest.mark.parametrize("make", [mlp, SmallLeNet, TransformerNet])
@pytest.mark.parametrize("kind", [LayerWise, Single, Sliced])
@pytest.mark.parametrize("start", [Glorot(), FromNetwork()], ids=str)
@pytest.mark.parametrize("dim", [1, 5])
def test_predicted_size_is_the_built_size(make, kind, start, dim: int):
    values = values_of(make())
    generator = kind(hidden=(6, 7), initialization=start)
    built = generator.build(values, GaussianNoise(dim))
    shapes = {name: value.shape for name, value in values.items()}
    actual = sum(parameter.numel() for parameter in built.parameters())
    assert generator.num_parameters(shapes, dim) == actual


@pytest.mark.parametrize(
    ("total", "chunk"),
    # Paper: LeNet, ResNet. A square. Small ones in a single call. Primes take a short last chunk.
    [(431_080, 3316), (462_693, 2003), (10_000, 400), (7, 7), (1, 1), (10_007, 400), (101, 40)],
)
def test_default_chunk(total: int, chunk: int):
    assert default_chunk(total) == chunk


def test_a_generator_larger_than_the_machine_is_refused():
    values = {"w": torch.empty(2**36, device="meta")}
    with pytest.raises(MemoryError, match="Sliced"):
        LayerWise().build(values, GaussianNoise())


@pytest.mark.parametrize(
    "make", [lambda: LayerWise(hidden=()), lambda: Single(hidden=(0,)), lambda: Single(chunk=0)]
)
def test_impossible_generators_are_refused(make):
    with pytest.raises(ValueError, match=r"hidden|chunk"):
        make()


# --- Every output once ----------------------------------------------------------------------


def explicit(one: Hypernetwork, noise: Tensor) -> Tensor:
    """The definition, call by call: [z, onehot(slice)] through the layers, joined and cut."""
    head, rows = one.head, []
    for index in range(head.slices):
        code = F.one_hot(torch.tensor(index), head.slices).to(noise)
        features = torch.cat([noise, code.expand(len(noise), -1)], dim=1)
        for layer in one.layers:
            features = F.leaky_relu(layer(features), one.slope)
        rows.append(features @ one.output_weight.T)
        if not one.bias_per_weight:
            rows[-1] = rows[-1] + one.output_bias
    weights = torch.cat(rows, dim=1)[:, : head.num_weights]
    return weights + one.output_bias if one.bias_per_weight else weights


@pytest.mark.parametrize(
    ("num_weights", "outputs"), [(12, 12), (12, 4), (13, 5), (13, 12), (13, 1), (1, 1), (101, 40)]
)
@pytest.mark.parametrize("own_bias", [False, True])
def test_hypernetwork_is_its_definition(num_weights: int, outputs: int, own_bias: bool):
    head = Head(("w",), num_weights, outputs, 0)
    one = Hypernetwork(head, 3, (5, 6), 0.1, own_bias).double()
    for parameter in one.parameters():
        nn.init.normal_(parameter)
    noise = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(one(noise), explicit(one, noise))


@pytest.mark.parametrize(
    ("num_weights", "outputs"), [(12, 12), (12, 4), (13, 5), (101, 40)], ids=str
)
def test_every_output_is_used_once_per_slice(num_weights: int, outputs: int):
    one = Hypernetwork(Head(("w",), num_weights, outputs, 0), 2, (4,), 0.1, False)
    Glorot().apply(one, torch.zeros(num_weights), 1.0, bbh.GaussianNoise(2))
    noise = torch.randn(3, 2)
    before = one(noise).detach()
    touched = torch.zeros(num_weights)
    for output in range(outputs):
        with torch.no_grad():
            one.output_bias[output] += 1
            moved = one(noise) - before
            one.output_bias[output] -= 1
        expected = torch.zeros(num_weights)
        expected[output::outputs] = 1
        torch.testing.assert_close(moved, expected.expand(3, -1), rtol=0, atol=1e-5)
        with torch.no_grad():
            one.output_weight[output] += 1
            changed = (one(noise) - before).abs().amax(0) > 1e-6
            one.output_weight[output] -= 1
        assert torch.equal(changed, expected.bool())
        touched += expected
    assert torch.equal(touched, torch.ones(num_weights))


@pytest.mark.parametrize("generator", [LayerWise, Single, Sliced])
def test_every_own_bias_moves_one_weight(generator):
    # 37 weights, a prime: Single takes 24 and 13.
    values = {"a.weight": torch.randn(4, 5), "a.bias": torch.randn(4), "b": torch.randn(13)}
    weights = build(generator(hidden=(6,)), values)
    noise = torch.randn(2, weights.generator.num_groups, 2)
    with torch.no_grad():
        before = flatten(weights.generator(noise), weights.shapes)
        touched = torch.zeros(37)
        for one in hypernetworks(weights.generator):
            for index in range(one.head.num_weights):
                one.output_bias[index] += 1
                moved = flatten(weights.generator(noise), weights.shapes) - before
                one.output_bias[index] -= 1
                assert (moved.abs() > 0.5).sum() == 2  # one weight, in both draws
                touched += moved[0].round()
    assert torch.equal(touched, torch.ones(37))


def test_single_generator_runs_through_the_tensors_in_order():
    values = {"a": torch.arange(6.0).view(2, 3), "s": torch.tensor(6.0), "b": torch.arange(7.0, 13)}
    generator = Single(chunk=5, hidden=(3,)).build(values, GaussianNoise())
    (one,) = hypernetworks(generator)
    assert (one.head.slices, one.head.outputs) == (3, 5)
    nn.init.zeros_(one.output_weight)
    with torch.no_grad():
        one.output_bias.copy_(torch.arange(13.0))
    samples = generator(torch.randn(2, 1, 1))
    for name, value in values.items():
        torch.testing.assert_close(samples[name], value.expand(2, *value.shape))


def test_a_slice_is_all_weights_into_one_unit():
    values = {"weight": torch.randn(3, 2, 2), "bias": torch.randn(3)}
    generator = Sliced(hidden=(8,)).build(values, GaussianNoise())
    kernel = hypernetworks(generator)[0]
    noise = torch.randn(4, 2, 1)
    before = generator(noise)["weight"]
    with torch.no_grad():
        kernel.layers[0].weight[:, 1 + 1] += 1.0  # the one-hot input of slice 1
    changed = (generator(noise)["weight"] - before).abs().amax((0, 2, 3)) > 1e-6
    assert changed.tolist() == [False, True, False]


# --- Noise ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LayerWise, Sliced])
@pytest.mark.parametrize("shared", [True, False])
def test_tensors_see_one_noise_or_their_own(kind, shared: bool):
    weights = build(kind(hidden=(4,)), values_of(mlp()), dim=3, shared=shared)
    drawn: list[Tensor] = []
    weights.generator.register_forward_pre_hook(lambda _, inputs: drawn.append(inputs[0]))
    weights.sample(5)
    seen = [drawn[0][:, one.head.group] for one in hypernetworks(weights.generator)]
    assert len(seen) == 4
    assert all(noise.shape == (5, 3) for noise in seen)
    assert all(torch.equal(noise, seen[0]) for noise in seen[1:]) == shared


def test_single_generator_has_one_noise_whatever_the_noise_says():
    weights = build(Single(hidden=(4,)), values_of(mlp()), shared=False)
    assert weights.generator.num_groups == 1


def test_shared_scalar_noise_makes_weights_a_curve():
    # One z decides all weights: sorted by z, equal z give equal weights.
    weights = build(LayerWise(hidden=(4,)), values_of(mlp()), dim=1, shared=True)
    noise = torch.randn(3, 1, 1).expand(3, 4, 1)
    twice = weights.generator(torch.cat([noise, noise]))
    for value in twice.values():
        torch.testing.assert_close(value[:3], value[3:])


def test_noise_has_unit_moments():
    noise = GaussianNoise(3, shared=False).sample(20_000, 2, torch.zeros(()).double())
    assert noise.dtype == torch.float64
    flat = noise.flatten(1)
    # 20 000 draws: means to 0.007, covariances to 0.01.
    torch.testing.assert_close(flat.mean(0), torch.zeros(6).double(), rtol=0, atol=0.03)
    torch.testing.assert_close(torch.cov(flat.T), torch.eye(6).double(), rtol=0, atol=0.05)
    with pytest.raises(ValueError, match=r"GaussianNoise\(dim\)=0"):
        GaussianNoise(0)


# --- Where weights start --------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LayerWise, Single, Sliced])
@pytest.mark.parametrize("dim", [1, 8])
def test_weights_start_at_the_networks_own(kind, dim: int):
    network = nn.Sequential(nn.Linear(100, 40), nn.Linear(40, 30))
    values = values_of(network)
    spread = 0.3
    weights = build(kind(initialization=FromNetwork(spread)), values, dim=dim)
    with torch.no_grad():
        samples = weights.sample(1000)
    scales = {"0.weight": 0.1, "0.bias": 0.1, "1.weight": 40**-0.5, "1.bias": 40**-0.5}
    shift, std = 0.0, 0.0
    for name, value in values.items():
        unit = spread * scales[name]
        shift += ((samples[name].mean(0) - value) / unit).square().sum().item()
        std += (samples[name].std(0) / unit).square().sum().item()
    # Means are set from 256 draws of z and measured with 1000: √(1/256 + 1/1000) = 0.07 standard
    # deviations; all weights of a tensor share the draws, so this is what one number would do.
    assert math.sqrt(shift / size(weights.shapes)) < 0.2
    # Mean variance over 5 270 weights, dominated by the 256 draws behind it: √(2/256) = 9 %, and
    # more in one dimension, where the features have heavier tails. Single averages two fan-ins.
    assert math.sqrt(std / size(weights.shapes)) == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize("hidden", [(16, 4), (16, 16), (16, 32, 64), (64, 256, 512)])
def test_a_step_moves_weights_by_a_tenth_of_their_spread_at_any_width(hidden):
    values, kind = {"weight": torch.randn(60, 40)}, GaussianNoise(4, shared=True)
    generator = LayerWise(hidden=hidden).build(values, kind)
    noise = kind.sample(100, 1, values["weight"])
    (matrix,) = (p for name, p in generator.named_parameters() if name.endswith("output_weight"))
    start, moved = matrix.detach().clone(), []
    for one in noise.split(1):
        before = generator(one)["weight"]
        before.mul(torch.randn(60, 40)).sum().backward()
        with torch.no_grad():
            # Adam's first step, at the default learning rate of Bayes by Hypernet.
            matrix.sub_(Implicit.training_defaults.learning_rate * matrix.grad.sign())
            moved.append((generator(one)["weight"] - before).abs().mean())
            matrix.copy_(start)
        matrix.grad = None
    with torch.no_grad():
        spread = generator(noise)["weight"].std(0).mean()
    assert (torch.stack(moved).mean() / spread).item() == pytest.approx(0.1, rel=0.3)


def test_spread_follows_fan_in_tensor_by_tensor():
    network = nn.Sequential(nn.Linear(400, 50), nn.Linear(50, 100))
    weights = build(Sliced(initialization=FromNetwork(0.1)), values_of(network), dim=8)
    with torch.no_grad():
        samples = weights.sample(500)
    for name, fan in (("0.weight", 400), ("1.weight", 50)):
        std = samples[name].var(0).mean().sqrt().item()
        # 256 and 500 draws, and slices whose trunk features differ.
        assert std == pytest.approx(0.1 / math.sqrt(fan), rel=0.3)


@pytest.mark.parametrize(("dim", "mean_spread", "std"), [(1, 0.034, 0.020), (8, 0.066, 0.061)])
def test_glorot_starts_small_as_in_the_paper(dim: int, mean_spread: float, std: float):
    # First kernel of LeNet (LeCun's scale would be 0.2): spread over weights of the mean over z,
    # and mean standard deviation over z, measured by the specification for a layer-wise start.
    means, stds = [], []
    for _ in range(8):
        weights = build(LayerWise(initialization=Glorot()), {"w": torch.zeros(500)}, dim=dim)
        with torch.no_grad():
            samples = weights.sample(500)["w"]
        means.append(samples.mean(0).std().item())
        stds.append(samples.std(0).mean().item())
    # A trunk's gain varies from start to start by a fifth; eight of them by 7 %.
    assert sum(means) / 8 == pytest.approx(mean_spread, rel=0.25)
    assert sum(stds) / 8 == pytest.approx(std, rel=0.25)


def test_precision_follows_the_network():
    values = {"w": torch.randn(3, 2, dtype=torch.float64)}
    assert build(Sliced(hidden=(4,)), values).sample(2)["w"].dtype == torch.float64
    with pytest.raises(ValueError, match="spread"):
        FromNetwork(0.0)


@pytest.mark.parametrize("initialization", [FromNetwork(0.3), Glorot()])
@pytest.mark.parametrize("noise", [GaussianNoise(1, shared=True), GaussianNoise(3)])
@pytest.mark.parametrize("rows", [3, 512])  # whole, and in pieces
def test_heads_evaluated_together_are_the_heads_one_by_one(initialization, noise, rows):
    values = {"a.weight": torch.randn(rows, 2), "a.bias": torch.randn(rows), "b": torch.randn(4, 3)}
    # Output layers of one size are one product.
    values |= {"c.weight": torch.randn(rows, 2), "c.bias": torch.randn(rows)}
    generator = LayerWise((5, 6), initialization=initialization).build(values, noise)
    z = noise.sample(4, generator.num_groups, torch.zeros(()))
    together = generator(z)
    assert all(draws.is_contiguous() for draws in together.values())
    parameters = dict(generator.named_parameters())
    slopes = torch.autograd.grad(sum(w.sin().sum() for w in together.values()), parameters.values())
    alone = 0.0
    for one in generator.hypernetworks:
        (name,) = one.head.names
        weights = one(z[:, one.head.group])
        torch.testing.assert_close(together[name].flatten(1), weights)
        alone = alone + weights.sin().sum()
    expected = torch.autograd.grad(alone, parameters.values())
    for name, mine, other in zip(parameters, slopes, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4, msg=name)
