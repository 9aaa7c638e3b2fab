"""SWAG: moments of a trajectory against NumPy, and what it makes of a trained network."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.methods import TrajectoryGaussian
from bbh.samples import flatten

SHAPES = {"w": torch.Size([3]), "b": torch.Size([])}


def along(points: torch.Tensor, **options) -> TrajectoryGaussian:
    """A distribution that has seen these points [K, 4], one after each epoch."""
    weights = TrajectoryGaussian({"w": torch.full((3,), 9.0), "b": torch.tensor(9.0)}, **options)
    for point in points:
        with torch.no_grad():
            weights.point()["w"].copy_(point[:3])
            weights.point()["b"].copy_(point[3])
        weights.end_epoch()
    return weights.double().eval()


@pytest.mark.parametrize(("number", "rank"), [(2, 20), (7, 20), (30, 5)])
def test_moments_are_those_of_the_published_formula(number, rank):
    points = torch.randn(number, 4) * torch.tensor([1.0, 0.1, 3.0, 0.5]) + 5
    weights = along(points, rank=rank)
    # Algorithm 1 of the paper, in NumPy: running moments, the last deviations from running means.
    values = points.double().numpy()
    means = np.cumsum(values, 0) / np.arange(1, number + 1)[:, None]
    last = (values - means)[-rank:]
    variance = (values**2).mean(0) - values.mean(0) ** 2
    expected = 0.5 * np.diag(variance) + 0.5 * last.T @ last / (len(last) - 1)
    draws = flatten(weights.sample(200_000), SHAPES).numpy()
    size = np.sqrt(np.diag(expected))
    # Means to 1/√200 000 of a standard deviation, covariances to twice that; five of each.
    assert np.abs(draws.mean(0) - values.mean(0)).max() < 5 * size.max() / 200_000**0.5 + 1e-5
    error = np.abs(np.cov(draws.T) - expected) / np.outer(size, size)
    assert error.max() < 10 / 200_000**0.5


def test_far_from_zero_no_digit_is_lost():
    points = 1000 + 1e-2 * torch.randn(20, 4, dtype=torch.float64)
    weights = TrajectoryGaussian({"w": torch.zeros(3), "b": torch.zeros(())})
    for point in points:
        with torch.no_grad():
            weights.point()["w"].copy_(point[:3])
            weights.point()["b"].copy_(point[3])
        weights.end_epoch()
    drawn = flatten(weights.eval().sample(5000), SHAPES).double().std(0)
    torch.testing.assert_close(drawn, points.std(0), rtol=0.2, atol=0)


def test_skipped_epochs_leave_no_trace():
    points = torch.randn(6, 4)
    later = along(points, skip_epochs=4)
    torch.testing.assert_close(later.mean, points[4:].double().mean(0))
    assert along(points[:4], skip_epochs=4).num_collected == 0


def test_before_two_epochs_it_is_the_network_itself():
    network = nn.Linear(2, 3).eval()
    posterior = bbh.methods.stochastic_weight_averaging(network, bbh.likelihoods.Categorical())
    inputs = torch.randn(5, 2)
    with torch.no_grad():
        expected = network(inputs).softmax(-1)
    torch.testing.assert_close(bbh.predict(posterior, inputs, 3).mean, expected)
    with pytest.raises(ValueError, match="point estimate"):
        bbh.inspect.look(posterior, num_samples=5)


def test_it_is_sure_where_the_data_are_and_unsure_elsewhere():
    torch.manual_seed(3)
    inputs = torch.linspace(-1, 1, 60).unsqueeze(1)
    targets = torch.sin(3 * inputs) + 0.1 * torch.randn_like(inputs)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=10, shuffle=True)
    network = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1))
    likelihood = bbh.likelihoods.Gaussian(0.1)
    point = bbh.methods.maximum_a_posteriori(network, likelihood)
    bbh.fit(point, loader, epochs=60, learning_rate=0.02, progress=False)
    network.load_state_dict({name: value[0] for name, value in point.sample(1).items()})
    posterior = bbh.methods.stochastic_weight_averaging(network, likelihood)
    bbh.fit(
        posterior,
        loader,
        epochs=25,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        progress=False,
    )
    inside = bbh.predict(posterior, inputs).epistemic_std.mean()
    outside = bbh.predict(posterior, torch.tensor([[-4.0], [4.0]])).epistemic_std.mean()
    assert 0 < inside < 0.1
    assert outside > 1.5 * inside


@pytest.mark.parametrize(
    ("options", "problem"), [({"rank": 1}, "at least two"), ({"skip_epochs": -1}, "0 or more")]
)
def test_what_cannot_be(options, problem):
    with pytest.raises(ValueError, match=problem):
        bbh.methods.stochastic_weight_averaging(
            nn.Linear(2, 3), bbh.likelihoods.Categorical(), **options
        )
