"""The one rule behind all thresholds, against the exact Beta law and exact arithmetic."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bbh.decisions.ranks import kth_smallest, rank, share


@given(n=st.integers(1, 2000), percent=st.integers(1, 99))
def test_it_is_the_smallest_rank_that_is_enough_on_average(n, percent):
    level = Fraction(percent, 100)
    if level * (n + 1) < 1:
        with pytest.raises(ValueError, match="hold out more"):
            rank(n, percent / 100, None, "alpha")
        return
    k = rank(n, percent / 100, None, "alpha")
    # A new score is at most the k-th smallest with probability k/(n + 1), exactly.
    assert Fraction(k, n + 1) >= 1 - level > Fraction(k - 1, n + 1)


@pytest.mark.parametrize(("n", "alpha", "confidence"), [(99, 0.1, 0.95), (500, 0.05, 0.9)])
def test_with_confidence_it_is_the_smallest_rank_by_the_beta_law(n, alpha, confidence):
    k = rank(n, alpha, confidence, "alpha")
    assert stats.beta(k, n + 1 - k).sf(1 - alpha) >= confidence
    assert stats.beta(k - 1, n + 2 - k).sf(1 - alpha) < confidence
    assert k > rank(n, alpha, None, "alpha")


@pytest.mark.parametrize("confidence", [None, 0.9, 0.99])
@pytest.mark.parametrize("n", [1, 7, 30])
def test_what_the_message_proposes_works_and_less_does_not(n, confidence):
    with pytest.raises(ValueError, match="hold out more") as raised:
        rank(n, 0.004, confidence, "alpha")
    words = str(raised.value).split()
    needed, smallest = int(words[words.index("least") + 1]), float(words[-3].removeprefix("alpha="))
    assert rank(needed, 0.004, confidence, "alpha") == needed
    assert rank(n, smallest, confidence, "alpha") == n
    with pytest.raises(ValueError, match="at least"):
        rank(needed - 1, 0.004, confidence, "alpha")
    with pytest.raises(ValueError, match="at least"):
        rank(n, smallest * 0.98, confidence, "alpha")


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, float("nan")])
def test_shares_lie_between_zero_and_one(alpha):
    with pytest.raises(ValueError, match=r"alpha=.*between 0 and 1"):
        rank(100, alpha, None, "alpha")
    with pytest.raises(ValueError, match=r"confidence=.*between 0 and 1"):
        rank(100, 0.1, alpha, "alpha")
    with pytest.raises(TypeError, match="alpha='5 %'"):
        share("alpha", "5 %")


def test_kth_smallest_counts_from_one_and_treats_outputs_apart():
    scores = torch.tensor([[3.0, 1.0], [1.0, 5.0], [2.0, 9.0]])
    assert kth_smallest(scores, 1).tolist() == [1, 1]
    assert kth_smallest(scores, 3).tolist() == [3, 9]
