"""The dip against its definition as a linear programme, and against published values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from bbh.inspect import dip_p_value, dip_statistic

# Hartigan & Hartigan (1985): quality of statistics departments.
FACULTY = [
    *(30, 33, 35, 36, 37, 37, 39, 39, 39, 39, 39, 40, 40, 40, 40, 41, 42, 43, 43, 43, 44, 44),
    *(45, 45, 46, 46, 47, 47, 48, 48, 48, 49, 50, 50, 51, 52, 52, 53, 53, 53, 53, 53, 54, 54),
    *(57, 57, 59, 60, 60, 60, 61, 61, 61, 61, 62, 62, 62, 62, 63, 66, 70, 72, 72),
]
# Quantiles of the dip of uniform samples, from the table of the R package diptest.
PUBLISHED = {
    (10, 0.5): 0.09778,
    (10, 0.95): 0.13961,
    (50, 0.95): 0.07027,
    (100, 0.9): 0.04715,
    (100, 0.95): 0.05113,
    (100, 0.99): 0.05902,
    (1000, 0.5): 0.01174,
    (1000, 0.95): 0.01693,
    (1000, 0.99): 0.01961,
}


def by_definition(values: list[float]) -> float:
    """The smallest δ so that some unimodal function stays within δ of F, a mode at a time.

    Up to the mode a convex function, beyond a concave one; it may jump at the mode only.
    """
    places, counts = np.unique(values, return_counts=True)
    after = counts.cumsum() / len(values)
    before = after - counts / len(values)
    return min(_with_mode(mode, places, before, after) for mode in range(len(places)))


def _with_mode(mode: int, places: np.ndarray, before: np.ndarray, after: np.ndarray) -> float:
    number_left, number_right = mode + 1, len(places) - mode
    size = number_left + number_right + 1
    rows, limits = [], []

    def at_most(terms: dict[int, float], limit: float) -> None:
        row = np.zeros(size)
        for index, factor in terms.items():
            row[index] += factor
        rows.append(row)
        limits.append(limit)

    left, right = list(range(number_left)), list(range(number_left, size - 1))
    for variables, indices, heights in (
        (left, range(mode + 1), (before,)),
        (left[:-1], range(mode), (after,)),
        (right, range(mode, len(places)), (after,)),
        (right[1:], range(mode + 1, len(places)), (before,)),
    ):
        for variable, index in zip(variables, indices, strict=True):
            for height in heights:
                at_most({variable: 1, size - 1: -1}, height[index])
                at_most({variable: -1, size - 1: -1}, -height[index])
    for variables, first, sign in ((left, 0, 1.0), (right, mode, -1.0)):
        for k in range(1, len(variables) - 1):
            one = sign / (places[first + k] - places[first + k - 1])
            two = sign / (places[first + k + 1] - places[first + k])
            a, b, c = variables[k - 1 : k + 2]
            at_most({a: -one, b: one + two, c: -two}, 0)
    for a, b in zip((left + right)[:-1], (left + right)[1:], strict=True):
        at_most({a: 1, b: -1}, 0)
    bounds = [(0, 1)] * size
    return linprog(np.eye(size)[-1], np.array(rows), np.array(limits), bounds=bounds).fun


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-6, 6), min_size=2, max_size=10))
def test_values_with_ties_against_the_definition(values: list[int]):
    # One step of F is always missed by a half, except by a jump of the unimodal one.
    expected = max(by_definition(list(map(float, values))), 0.5 / len(values))
    assert dip_statistic(np.array(values, dtype=float)) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("seed", range(10))
def test_two_clusters_against_the_definition(seed: int):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=14) + 3 * (rng.random(14) < 0.5)
    expected = by_definition(values.tolist())
    assert dip_statistic(values) == pytest.approx(expected, abs=1e-7)


def test_published_example():
    assert dip_statistic(np.array(FACULTY, dtype=float)) == pytest.approx(0.05952381, abs=1e-8)


def test_closed_forms():
    assert dip_statistic(np.full(7, 3.0)) == 0.5 / 7
    assert dip_statistic(np.arange(50.0)) == pytest.approx(0.5 / 50)
    # Two points of mass a ≤ b: the mode sits on the larger, the other is missed by a half.
    atoms = np.array([0.0] * 30 + [1.0] * 70)
    assert dip_statistic(atoms) == pytest.approx(0.15, abs=1e-9)
    assert dip_statistic(1e6 - 1e-3 * atoms) == pytest.approx(0.15, abs=1e-6)


@pytest.mark.parametrize(("number", "level"), PUBLISHED)
def test_critical_values_are_the_published_ones(number: int, level: float):
    found = dip_p_value(PUBLISHED[number, level], number)
    # The quantiles of 20,000 samples: three standard errors.
    error = 3 * np.sqrt(level * (1 - level) / 20_000)
    assert found == pytest.approx(1 - level, abs=error + 1e-3)


def test_one_mode_is_rarely_called_two_and_two_modes_are_found():
    rng = np.random.default_rng(0)

    def share(samples: np.ndarray) -> float:
        return np.mean([dip_p_value(dip_statistic(one), len(one)) < 0.05 for one in samples])

    assert share(rng.random((400, 60))) == pytest.approx(0.05, abs=0.033)
    # Skewed and heavy-tailed, where a mixture of two Gaussians would win: conservative.
    assert share(rng.exponential(size=(100, 60))) <= 0.05
    assert share(rng.standard_t(2, size=(100, 60))) <= 0.05
    far = 2.5 * rng.choice([-1, 1], size=(50, 300)) + rng.normal(size=(50, 300))
    assert share(far) == 1


def test_the_ends_of_the_table():
    assert dip_p_value(0.25, 1000) == pytest.approx(0.001)
    assert dip_p_value(0.0005, 1000) == 1
    assert dip_p_value(0.5427 / 10**3, 10**6) == pytest.approx(0.05, abs=0.001)


@pytest.mark.parametrize("values", [[], [1.0, np.nan], [np.inf, 0.0]])
def test_bad_input(values: list[float]):
    with pytest.raises(ValueError, match="at least one value"):
        dip_statistic(np.array(values, dtype=float))
