"""Welch's test beside SciPy's, at its edges, and where there is nothing to test."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bbh_studies.statistic import Statistic, p_value, student_p, told_apart

NUMBERS = st.floats(-100, 100, allow_nan=False)
SAMPLES = st.lists(NUMBERS, min_size=2, max_size=6)


@given(st.floats(0, 1e6), st.floats(1, 1e4))
def test_students_distribution_is_scipys(t, freedom):
    assert student_p(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-9, abs=1e-14)


def test_printed_quantiles():
    """The two-sided 5 % points of any textbook."""
    for freedom, t in {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 10: 2.228, 1000: 1.962}.items():
        assert student_p(t, freedom) == pytest.approx(0.05, abs=5e-5)
    assert student_p(0.0, 3.0) == 1.0
    assert student_p(math.inf, 3.0) == 0.0


@given(SAMPLES, SAMPLES)
def test_welch_is_scipys(one, other):
    first, second = Statistic.of(one), Statistic.of(other)
    if min(first.std, second.std) < 1e-3:
        return  # SciPy warns about samples that hardly vary
    expected = stats.ttest_ind(one, other, equal_var=False).pvalue
    assert p_value(first, second) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert p_value(first, second) == p_value(second, first)


def test_a_single_value_has_the_other_samples_spread():
    """Student's test with one variance for both: t = (m − x) / (s · √(1/3 + 1)), two degrees."""
    one, other = [0.97, 1.06, 0.88], [0.56]
    expected = 2 * stats.t.sf((0.97 - 0.56) / (np.std(one, ddof=1) * np.sqrt(4 / 3)), 2)
    for pair in ((one, other), (other, one)):
        assert p_value(*map(Statistic.of, pair)) == pytest.approx(expected, rel=1e-6)
    # A value lies within a sample of three up to 4.30 · √(1 + 1/3) = 4.97 standard deviations.
    sample = Statistic(0.0, 1.0, 3)
    assert told_apart(sample, Statistic(4.96, None, 1)) is False
    assert told_apart(sample, Statistic(4.98, None, 1)) is True
    assert told_apart(sample, Statistic(5.4, None, 1), slack=0.5) is False


def test_nothing_to_test():
    single = Statistic.of([1.0])
    assert p_value(single, Statistic.of([2.0])) is None
    assert told_apart(single, Statistic.of([2.0])) is None
    broken = Statistic.of([1.0, math.nan])
    assert p_value(broken, Statistic.of([1.0, 2.0])) is None


def test_samples_that_do_not_vary():
    constant = Statistic.of([0.3, 0.3, 0.3])
    assert told_apart(constant, Statistic.of([0.1 + 0.2] * 2)) is False  # but for rounding
    assert told_apart(constant, Statistic.of([0.31, 0.31])) is True
    assert told_apart(constant, Statistic.of([0.4])) is True
    # If one of them varies, its noise alone decides, with its own degrees of freedom.
    varying = Statistic.of([0.30, 0.31, 0.35])
    expected = stats.ttest_1samp([0.30, 0.31, 0.35], 0.3).pvalue
    assert p_value(constant, varying) == pytest.approx(expected, rel=1e-5)


def test_two_standard_errors_are_not_enough_for_two_seeds():
    """A rule of two standard errors calls a sixth of such pairs different."""
    random = np.random.default_rng(0)
    pairs = random.normal(size=(4000, 2, 2))
    found = [[Statistic.of(sample.tolist()) for sample in pair] for pair in pairs]
    by_rule = [
        abs(a.mean - b.mean) > 2 * math.hypot(a.error_of_mean, b.error_of_mean) for a, b in found
    ]
    by_test = [told_apart(a, b) for a, b in found]
    assert np.mean(by_rule) > 0.15
    assert np.mean(by_test) < 0.05
