"""The noise of hypernetworks, and its encoding with constant norm."""

import math

import pytest
import torch
from torch import nn
from torch.func import jacrev

import bbh
from bbh.samples import as_vector

GENERATORS = [
    bbh.generators.LayerWise(hidden=(8, 16)),
    bbh.generators.Sliced(hidden=(8, 16)),
    bbh.generators.Single(hidden=(8, 16)),
    bbh.generators.LowRank(rank=2, hidden=(8,)),
    bbh.generators.Directions(hidden=(8,)),
]


def circles(num_samples=1000, dim=3):
    noise = bbh.GaussianNoise(dim, constant_norm=True)
    like = torch.empty(0, dtype=torch.float64)
    return noise.encoded(noise.sample(num_samples, 2, like))


def test_plain_noise_is_what_generators_get():
    noise = bbh.GaussianNoise(3)
    drawn = noise.sample(5, 2, torch.empty(0))
    assert noise.num_inputs == 3
    assert noise.encoded(drawn) is drawn
    gram = torch.randn(5, 2, 3, 3)
    assert noise.gram(drawn, gram) is gram


def test_every_number_becomes_a_point_on_the_unit_circle():
    points = circles()
    assert points.shape == (1000, 2, 6)
    assert (points >= 0).all()
    cosines, sines = points.chunk(2, dim=-1)
    torch.testing.assert_close(cosines.square() + sines.square(), torch.ones_like(cosines))
    # So all inputs have the length √d.
    torch.testing.assert_close(points.norm(dim=-1), torch.full((1000, 2), math.sqrt(3)).double())


def test_known_angles():
    noise = bbh.GaussianNoise(1, constant_norm=True)
    # Φ(0) = ½; the quartiles of N(0, 1) are at ±0.67449.
    z = torch.tensor([[-50.0], [-0.6744898], [0.0], [0.6744898], [50.0]])
    cosines, sines = noise.encoded(z).T
    angles = torch.atan2(sines, cosines) / (0.5 * math.pi)
    torch.testing.assert_close(angles, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))


def test_angles_are_uniform():
    cosines, sines = circles(20_000, 1).flatten(0, 1).T
    angles = (torch.atan2(sines, cosines) / (0.5 * math.pi)).sort().values
    largest = (angles - torch.linspace(0, 1, len(angles))).abs().max()
    # Kolmogorov and Smirnov: this distance is exceeded once in a thousand times.
    assert largest < 1.95 / math.sqrt(len(angles))


def make(generator, shared=True, divergence=None):
    torch.manual_seed(0)
    return bbh.methods.bayes_by_hypernet(
        nn.Linear(3, 2),
        bbh.likelihoods.Categorical(),
        generator=generator,
        noise=bbh.GaussianNoise(2, shared, constant_norm=True),
        divergence=divergence,
    )


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("generator", GENERATORS, ids=lambda one: type(one).__name__)
def test_all_generators_take_it(generator, shared):
    posterior = make(generator, shared)
    weights = posterior.weights
    shapes = weights.shapes
    parameters = sum(one.numel() for one in weights.generator.parameters())
    assert parameters == generator.num_parameters(shapes, noise_dim=4)
    batch = torch.randn(8, 3), torch.randint(2, (8,))
    bbh.free_energy(posterior, batch, num_data=8).total.backward()
    assert all(one.grad is not None for one in weights.generator.parameters())


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda one: type(one).__name__)
def test_weights_start_around_the_networks_own(generator):
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    values = {name: value.detach().clone() for name, value in network.named_parameters()}
    weights = make(generator).weights
    drawn = weights.sample(20_000)
    for name, value in values.items():
        # A standard deviation of 0.1/√3 around the value. The initialisation itself knows means
        # from 256 draws only.
        assert (drawn[name].mean(0) - value).abs().max() < 0.1 / math.sqrt(3)
    spread = torch.cat([drawn[name].var(0).flatten() for name in values]).mean().sqrt()
    # An average over many weights; here are eight.
    assert 0.5 < spread / (0.1 / math.sqrt(3)) < 2


@pytest.mark.parametrize("generator", GENERATORS[:4], ids=lambda one: type(one).__name__)
def test_the_gram_matrix_is_that_of_the_whole_map(generator):
    """JᵀJ with respect to z, by torch's own Jacobian of encoding and generator together."""
    weights = make(generator, divergence=bbh.divergences.JointEntropy()).weights.double()
    module, noise = weights.generator, weights.noise
    z = torch.randn(2, dtype=torch.float64)

    def generated(z):
        inputs = noise.encoded(z.expand(1, module.num_groups, -1))
        return as_vector(module(inputs))

    jacobian = jacrev(generated)(z)
    expanded = z.expand(1, module.num_groups, -1)
    found = noise.gram(expanded, module.jacobian_gram(noise.encoded(expanded))).sum(1)
    torch.testing.assert_close(found[0], jacobian.T @ jacobian)


def test_saved_and_loaded(tmp_path):
    posterior = make(GENERATORS[0])
    bbh.save(posterior, tmp_path / "posterior.safetensors")
    loaded = bbh.load(tmp_path / "posterior.safetensors", nn.Linear(3, 2))
    assert loaded.weights.noise == bbh.GaussianNoise(2, True, constant_norm=True)
    draws = []
    for one in (posterior, loaded):
        torch.manual_seed(1)
        draws.append(one.sample(3))
    assert all(torch.equal(draws[0][name], draws[1][name]) for name in draws[0])
