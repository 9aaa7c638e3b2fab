"""Entropies against closed forms; the area under their distribution against its identity."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from scipy import stats
from torch import Tensor

from bbh.metrics import (
    entropy,
    entropy_auc,
    entropy_auc_histogram,
    expected_entropy,
    mutual_information,
)

BIN = 1 / 500


def _draws(seed: int = 0, num_samples: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_samples, 20, 4, generator=generator, dtype=torch.float64)
    return (3 * logits).softmax(-1)


def _published(entropies: np.ndarray, max_entropy: float) -> float:
    """The published computation, step by step, divided by the largest entropy."""
    step = max_entropy / 500
    density, edges = np.histogram(entropies, [step * i for i in range(500)], density=True)
    cumulative = np.cumsum(density * np.diff(edges))
    return float(np.sum(cumulative * np.diff(edges)) / max_entropy)


def test_entropy_against_scipy():
    probs = _draws()[0]
    np.testing.assert_allclose(entropy(probs), stats.entropy(probs, axis=-1), rtol=1e-12)


def test_entropy_is_exact_at_the_corners():
    assert entropy(torch.eye(3)).tolist() == [0, 0, 0]
    half = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    assert entropy(half).item() == pytest.approx(math.log(2), rel=1e-15)
    uniform = torch.full((2, 3, 10), 0.1, dtype=torch.float64)
    assert entropy(uniform).shape == (2, 3)
    assert entropy(uniform)[0, 0].item() == pytest.approx(math.log(10))
    assert entropy(torch.tensor([1.0000002, 0.0])).item() == 0


def test_decomposition_against_scipy():
    draws = _draws()
    aleatoric = stats.entropy(draws, axis=-1).mean(0)
    total = stats.entropy(draws.mean(0), axis=-1)
    np.testing.assert_allclose(expected_entropy(draws), aleatoric, rtol=1e-12)
    np.testing.assert_allclose(mutual_information(draws), total - aleatoric, rtol=1e-10)


def test_mutual_information_is_the_mean_divergence_from_the_mean():
    draws = _draws(seed=1)
    divergence = (draws * (draws / draws.mean(0)).log()).sum(-1).mean(0)
    np.testing.assert_allclose(mutual_information(draws), divergence, rtol=1e-10)


def test_mutual_information_at_its_ends():
    disagree = torch.eye(4, dtype=torch.float64).unsqueeze(1)
    assert mutual_information(disagree).item() == pytest.approx(math.log(4))
    assert expected_entropy(disagree).item() == 0
    agree = _draws(num_samples=1).float().expand(9, -1, -1)
    information = mutual_information(agree)
    assert information.min() >= 0
    assert information.max() < 1e-6


def test_entropy_keeps_gradients():
    probs = torch.tensor([[0.25, 0.75]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(entropy(probs).sum(), probs)
    np.testing.assert_allclose(gradient, -(probs.detach().log() + 1))


def test_entropy_auc_is_the_area_under_the_distribution_function():
    entropies = entropy(_draws()[0])
    grid = np.linspace(0, math.log(4), 200_001)
    distribution = np.searchsorted(np.sort(entropies.numpy()), grid, side="right") / len(entropies)
    area = np.trapezoid(distribution, grid) / math.log(4)
    assert entropy_auc(entropies, 4) == pytest.approx(area, abs=1e-5)


def test_entropy_auc_at_its_ends():
    largest = torch.full((3,), math.log(10), dtype=torch.float64)
    assert entropy_auc(torch.zeros(3), 10) == 1
    assert entropy_auc(largest, 10) == 0
    assert entropy_auc(entropy(torch.full((3, 10), 0.1)), 10) == pytest.approx(0, abs=1e-6)


fractions = st.lists(st.floats(0, 1), min_size=1, max_size=50)


@settings(deadline=None)
@given(fractions=fractions, num_classes=st.integers(2, 1000))
def test_histogram_against_the_published_steps(fractions: list[float], num_classes: int):
    max_entropy = math.log(num_classes)
    entropies = max_entropy * np.array(fractions)
    ours = entropy_auc_histogram(torch.from_numpy(entropies), num_classes)
    if (entropies > max_entropy / 500 * 499).all():
        assert ours == 0
        assert entropy_auc(torch.from_numpy(entropies), num_classes) <= BIN + 1e-12
    else:
        assert ours == pytest.approx(_published(entropies, max_entropy), abs=1e-12)


@settings(deadline=None)
@given(
    fractions=st.lists(st.floats(0, 0.9979), min_size=1, max_size=50),
    num_classes=st.integers(2, 1000),
)
def test_histogram_is_the_identity_less_half_a_bin(fractions: list[float], num_classes: int):
    entropies = math.log(num_classes) * torch.tensor(fractions, dtype=torch.float64)
    exact = entropy_auc(entropies, num_classes)
    centred = entropy_auc_histogram(entropies, num_classes) + BIN / 2
    assert centred == pytest.approx(exact, abs=BIN / 2 + 1e-12)


def test_histogram_of_many_entropies_is_half_a_bin_lower():
    entropies = 0.99 * math.log(10) * torch.linspace(0, 1, 100_000, dtype=torch.float64)
    difference = entropy_auc(entropies, 10) - entropy_auc_histogram(entropies, 10)
    assert difference == pytest.approx(BIN / 2, abs=1e-5)


def test_histogram_drops_the_best_recognised_outliers():
    largest = math.log(10)
    entropies = torch.tensor([0.5, 1.0, 1.0, 1.0], dtype=torch.float64) * largest
    assert entropy_auc(entropies, 10) == pytest.approx(0.125)
    assert entropy_auc_histogram(entropies, 10) == pytest.approx(0.498, abs=2 * BIN)


def test_histogram_at_its_ends():
    last_edge = math.log(10) / 500 * 499
    assert entropy_auc_histogram(torch.zeros(3), 10) == 0.998
    closed = torch.tensor([last_edge], dtype=torch.float64)
    assert entropy_auc_histogram(closed, 10) == BIN
    beyond = torch.tensor([math.nextafter(last_edge, 3)], dtype=torch.float64)
    assert entropy_auc_histogram(beyond, 10) == 0


def test_bad_input():
    with pytest.raises(ValueError, match=r"probs: .* outside"):
        entropy(torch.tensor([2.0, -1.0]))
    for decompose in (expected_entropy, mutual_information):
        with pytest.raises(ValueError, match="probs_per_draw: the last axis does not sum to 1"):
            decompose(torch.ones(2, 3, 4))
        with pytest.raises((ValueError, TypeCheckError)):
            decompose(torch.eye(3))
    for area in (entropy_auc, entropy_auc_histogram):
        with pytest.raises(ValueError, match=r"entropies: .* outside"):
            area(torch.tensor([1.0]), 2)
        with pytest.raises(ValueError, match="entropies: empty"):
            area(torch.zeros(0), 2)
        with pytest.raises(ValueError, match="num_classes: expected at least 2"):
            area(torch.zeros(1), 1)
