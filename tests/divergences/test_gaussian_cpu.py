"""Distances and a Gaussian prior in one compiled loop, against the general way."""

import pytest
import torch

import bbh
from bbh import compiled
from bbh.divergences import NearestNeighbourEntropy, gaussian_cpu
from bbh.divergences.base import Comparison

pytestmark = pytest.mark.skipif(compiled.compiler() is None, reason="there is no C++ compiler")
SHAPES = {"a.weight": torch.Size([7, 5]), "a.bias": torch.Size([7]), "scalar": torch.Size([])}
CENTRE = {name: torch.zeros(shape) for name, shape in SHAPES.items()}


@pytest.fixture
def compiling(monkeypatch):
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")
    gaussian_cpu._compiled.cache_clear()  # other tests find no loop
    yield monkeypatch
    gaussian_cpu._compiled.cache_clear()


def draws(num_samples=10, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(num_samples, *shape, generator=generator, dtype=dtype).requires_grad_()
        for name, shape in SHAPES.items()
    }


def complexity_and_gradients(samples, prior):
    cost = NearestNeighbourEntropy()(samples, SHAPES, prior).complexity
    return cost, torch.autograd.grad(2 * cost, list(samples.values()))


@pytest.mark.parametrize("prior", [bbh.priors.Normal(0.7), bbh.priors.FanIn(2.0)], ids=repr)
def test_it_is_the_general_estimate(prior, compiling):
    prior, samples = prior.for_shapes(SHAPES), draws()
    assert gaussian_cpu.cost_by_tensors(Comparison(samples, SHAPES, prior), 1e-4, 2) is not None
    found = complexity_and_gradients(samples, prior)
    compiling.setattr("bbh.divergences.entropy.cost_by_tensors", lambda *_: None)
    expected = complexity_and_gradients({n: v.double() for n, v in samples.items()}, prior)
    # The logarithms of 430 densities and distances add up to hundreds of nats, and cancel.
    assert found[0].item() == pytest.approx(expected[0].item(), abs=1e-4)
    for one, other in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-4, atol=1e-4)


def test_with_the_likelihoods_gradient_it_is_the_general_estimate(compiling):
    torch.manual_seed(0)
    network = torch.nn.Linear(5, 3)
    posterior = bbh.methods.bayes_by_hypernet(network, bbh.likelihoods.Categorical())
    batch = torch.randn(20, 5), torch.randint(3, (20,))
    found = []
    for way in (gaussian_cpu.cost_by_tensors, lambda *_: None):
        compiling.setattr("bbh.divergences.entropy.cost_by_tensors", way)
        torch.manual_seed(1)
        energy = bbh.free_energy(posterior, batch, num_data=20, likelihood_samples=2)
        gradients = torch.autograd.grad(energy.total, list(posterior.weights.parameters()))
        found.append((energy.total, *gradients))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_second_backward_pass_gives_the_same_gradient(compiling):
    samples = draws()
    cost = NearestNeighbourEntropy()(samples, SHAPES, bbh.priors.Normal()).complexity
    inputs = list(samples.values())
    first = torch.autograd.grad(3 * cost, inputs, retain_graph=True)
    second = torch.autograd.grad(3 * cost, inputs)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("samples", "prior"),
    [
        (draws(), bbh.priors.Laplace()),
        (draws(), bbh.priors.Normal(1.0, loc=0.5)),
        (draws(), bbh.priors.Centred(CENTRE, bbh.priors.Normal())),
        (draws(dtype=torch.float64), bbh.priors.Normal()),
        (draws(17), bbh.priors.Normal()),
    ],
    ids=["not Gaussian", "not around zero", "centred", "double", "many draws"],
)
def test_others_take_the_general_way(samples, prior, compiling):
    assert gaussian_cpu.cost_by_tensors(Comparison(samples, SHAPES, prior), 1e-4, 2) is None


def test_without_a_compiler_too():
    comparison = Comparison(draws(), SHAPES, bbh.priors.Normal())
    assert gaussian_cpu.cost_by_tensors(comparison, 1e-4, 2) is None
    gaussian_cpu._compiled.cache_clear()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_draws_that_are_no_numbers_are_seen(value, compiling):
    samples = {name: draw.detach().clone() for name, draw in draws().items()}
    samples["a.bias"][3, 2] = value
    cost = NearestNeighbourEntropy()(samples, SHAPES, bbh.priors.Normal()).complexity
    assert not cost.isfinite()
