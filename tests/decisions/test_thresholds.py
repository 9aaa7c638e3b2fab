"""Outliers and rejection: rates over many held-out sets, and bounds against scipy's."""

import numpy as np
import pytest
import torch
from scipy import stats

from bbh.decisions import OutlierThreshold, Rejection


def test_false_positives_follow_the_beta_law():
    n, rate = 59, 0.1
    found = [1 - OutlierThreshold.fit(torch.rand(n), rate).threshold for _ in range(1500)]
    above = int(rate * (n + 1))
    assert stats.kstest(found, stats.beta(above, n + 1 - above).cdf).pvalue > 0.01
    assert np.mean(found) == pytest.approx(rate, abs=0.005)


def test_with_confidence_few_held_out_sets_flag_too_many():
    found = [
        1 - OutlierThreshold.fit(torch.rand(200), 0.1, confidence=0.95).threshold
        for _ in range(1000)
    ]
    too_many = int(np.sum(np.array(found) > 0.1))
    assert stats.binomtest(too_many, 1000, 0.05, "greater").pvalue > 0.01


def test_ties_flag_fewer_and_infinite_scores_are_refused():
    flagged = OutlierThreshold.fit(torch.tensor([0.0] * 50 + [1.0] * 50), 0.1)
    assert not flagged(torch.tensor([0.0, 1.0])).any()
    assert flagged(np.array([1.5])).all()
    with pytest.raises(ValueError, match="infinite"):
        OutlierThreshold.fit(torch.tensor([0.0, torch.inf]), 0.4)
    with pytest.raises(ValueError, match="expected 1 axes"):
        OutlierThreshold.fit(torch.rand(30, 2))
    with pytest.raises(ValueError, match=r"false_positive_rate=0\.01 needs at least 99"):
        OutlierThreshold.fit(torch.rand(20), 0.01)


def answers(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Uncertainty u is uniform, and a prediction is wrong with probability u²/2."""
    uncertainty = torch.rand(number, dtype=torch.float64)
    return uncertainty, torch.rand(number) < uncertainty**2 / 2


def true_error(threshold: float) -> float:
    """E[u²/2 | u < t] = t²/6."""
    return min(threshold, 1.0) ** 2 / 6


def test_the_error_is_kept_with_confidence_and_not_without():
    sets, confidence, limit = 150, 0.9, 0.06
    guaranteed = [Rejection.for_error(*answers(1500), limit, confidence=0.9) for _ in range(sets)]
    broken = sum(true_error(rule.threshold) > limit for rule in guaranteed)
    assert stats.binomtest(broken, sets, 1 - confidence, "greater").pvalue > 0.01
    # It is not so careful as to be useless: the best threshold answers 60 %.
    assert np.mean([rule.coverage for rule in guaranteed]) > 0.3
    plain = [Rejection.for_error(*answers(1500), limit, confidence=None) for _ in range(sets)]
    assert np.mean([true_error(rule.threshold) > limit for rule in plain]) > 1 - confidence
    assert all(rule.error_bound is None for rule in plain)


def test_ties_keep_the_guarantee():
    """Uncertainty of three values; the error jumps at the last."""
    broken = 0
    for _ in range(200):
        uncertainty = torch.randint(3, (500,)).double()
        wrong = torch.rand(500) < torch.tensor([0.0, 0.02, 0.3])[uncertainty.long()]
        rule = Rejection.for_error(uncertainty, wrong, 0.05, confidence=0.9)
        errors = {0: 0.0, 1: 0.01, 2: 0.32 / 3}
        broken += errors[int(rule(torch.arange(3.0)).sum()) - 1] > 0.05
    assert broken == 0


def test_the_bound_is_that_of_clopper_and_pearson():
    uncertainty, wrong = torch.arange(100.0), torch.zeros(100)
    wrong[::10] = 1
    rule = Rejection.for_error(uncertainty, wrong, 0.5, confidence=0.95)
    assert (rule.coverage, rule.error, rule.threshold) == (1.0, 0.1, np.inf)
    # Five of a hundred could not pass even without an error: 19 thresholds are left.
    assert 0.5**5 > 0.05 / 20
    assert 0.5**10 <= 0.05 / 19
    known = stats.binomtest(10, 100).proportion_ci(1 - 2 * 0.05 / 19, "exact").high
    assert rule.error_bound == pytest.approx(known)


def test_what_cannot_be_kept_is_said():
    uncertainty, wrong = answers(40)
    with pytest.raises(ValueError, match=r"the lowest bound is .* of 40 held-out .*Hold out more"):
        Rejection.for_error(uncertainty, wrong, 0.01)
    with pytest.raises(ValueError, match="the lowest held-out error is 1"):
        Rejection.for_error(uncertainty, torch.ones(40), 0.01, confidence=None)
    with pytest.raises(ValueError, match="values other than 0 and 1"):
        Rejection.for_error(uncertainty, uncertainty, 0.1)
    with pytest.raises(ValueError, match="wrong: shape"):
        Rejection.for_error(uncertainty, wrong[:20], 0.1)
    with pytest.raises(ValueError, match="coverage=1: give"):
        Rejection.for_coverage(uncertainty, 1.0)


def test_constant_uncertainty_answers_all_or_none():
    rule = Rejection.for_error(torch.ones(100), torch.zeros(100), 0.1)
    assert rule.coverage == 1
    with pytest.raises(ValueError, match="no threshold"):
        Rejection.for_error(torch.ones(100), torch.ones(100), 0.1)


def test_coverage_is_kept_on_average():
    shares = [
        min(Rejection.for_coverage(torch.rand(49, dtype=torch.float64), 0.8).threshold, 1)
        for _ in range(1500)
    ]
    assert stats.kstest(shares, stats.beta(40, 10).cdf).pvalue > 0.01
    rule = Rejection.for_coverage(torch.arange(9.0), 0.5, wrong=torch.arange(9) > 2)
    assert (rule.coverage, rule.error) == (5 / 9, 2 / 5)
    assert rule(torch.tensor([4.0, 4.1])).tolist() == [True, False]
