"""Scores by hand, BatchBALD against all batches of tiny pools, and a search whose best is known."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bbh import acquisition
from bbh.acquisition.batch_bald import Joint
from bbh.likelihoods import Categorical
from bbh.predictive import ClassPredictive


def predicted(draws: Tensor) -> ClassPredictive:
    """The prediction of these probabilities [S, B, C]."""
    likelihood, logits = Categorical(), draws.clamp(min=1e-30).log()
    return likelihood.predictive(likelihood.sums(logits), len(draws), logits)


def information(draws: Tensor, batch: tuple[int, ...]) -> float:
    """I(y_1, …, y_b; w) by summing over all configurations of the labels."""
    num_classes = draws.shape[2]
    joint = 0.0
    for labels in itertools.product(range(num_classes), repeat=len(batch)):
        p = torch.stack([draws[:, i, c] for i, c in zip(batch, labels, strict=True)]).prod(0).mean()
        joint += torch.special.entr(p).item()
    expected = sum(torch.special.entr(draws[:, i]).sum(1).mean().item() for i in batch)
    return joint - expected


def greedy(draws: Tensor, number: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(number):
        rest = [i for i in range(draws.shape[1]) if i not in chosen]
        chosen.append(max(rest, key=lambda i: information(draws, (*chosen, i))))
    return chosen


def test_scores_by_hand():
    draws = torch.tensor([[[1.0, 0.0, 0.0], [0.6, 0.3, 0.1]], [[0.0, 1.0, 0.0], [0.6, 0.3, 0.1]]])
    predictive = predicted(draws)
    half, other = np.log(2), stats.entropy([0.6, 0.3, 0.1])
    assert acquisition.entropy(predictive).tolist() == pytest.approx([half, other], rel=1e-5)
    assert acquisition.bald(predictive).tolist() == pytest.approx([half, 0], abs=1e-5)
    assert acquisition.variation_ratio(predictive).tolist() == pytest.approx([0.5, 0.4])
    assert acquisition.margin(predictive).tolist() == pytest.approx([1.0, 0.7])
    assert acquisition.margin(predictive.mean.numpy()).tolist() == pytest.approx([1.0, 0.7])


@pytest.mark.parametrize("seed", range(5))
def test_batch_bald_is_the_greedy_choice_by_brute_force(seed):
    torch.manual_seed(seed)
    draws = (2 * torch.randn(6, 5, 3, dtype=torch.float64)).softmax(2)
    wanted = greedy(draws, 4)
    assert acquisition.batch_bald(predicted(draws), 4).tolist() == wanted
    # Greedy is at least 1 − 1/e of the best of all batches (Nemhauser et al., 1978).
    best = max(information(draws, batch) for batch in itertools.combinations(range(5), 3))
    assert information(draws, tuple(wanted[:3])) >= (1 - 1 / np.e) * best
    # The first is the best single one.
    assert wanted[0] == acquisition.bald(predicted(draws)).argmax()


def test_sampled_configurations_come_close():
    draws = (2 * torch.randn(8, 6, 3, dtype=torch.float64)).softmax(2)
    exact = information(draws, tuple(greedy(draws, 4)))
    sampled = acquisition.batch_bald(predicted(draws), 4, num_configurations=26)
    assert len(set(sampled.tolist())) == 4
    assert information(draws, tuple(sampled.tolist())) > 0.9 * exact


def test_sampled_entropies_are_unbiased():
    draws = (2 * torch.randn(8, 4, 3, dtype=torch.float64)).softmax(2)
    exact = Joint.empty(8).extended(draws[:, 0], 10**6).extended(draws[:, 1], 10**6)
    found = torch.stack(
        [
            Joint.empty(8)
            .extended(draws[:, 0], 40)
            .extended(draws[:, 1], 40)
            .extended(draws[:, 2], 20)
            .entropies_with(draws)[3:]
            for _ in range(300)
        ]
    )
    wanted = exact.extended(draws[:, 2], 10**6).entropies_with(draws)[3:]
    error = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - wanted).abs() < 4 * error).all()


def test_a_duplicate_is_not_chosen_twice():
    draws = (3 * torch.randn(20, 6, 3, dtype=torch.float64)).softmax(2)
    # The most informative example ten times over; a label settles all of them.
    certain = torch.nn.functional.one_hot(torch.arange(20) % 3, 3).double().unsqueeze(1)
    pool = torch.cat([certain.expand(20, 10, 3), draws], dim=1)
    predictive = predicted(pool)
    chosen = acquisition.batch_bald(predictive, 4).tolist()
    assert sum(one < 10 for one in chosen) == 1
    # The best by themselves are all the same example.
    assert (acquisition.top(acquisition.bald(predictive), 4) < 10).all()
    sampled = acquisition.batch_bald(predictive, 4, num_configurations=10).tolist()
    assert sum(one < 10 for one in sampled) == 1


def test_a_search_for_a_threshold_halves_what_is_left():
    """Labels are 1[x > t]; draws are the thresholds that fit all labels so far."""
    pool = torch.linspace(0, 1, 129)[1:-1]
    truth = 0.3172

    def left_over(choose) -> int:
        thresholds = torch.linspace(0, 1, 513)[:-1] + 1 / 1024
        for _ in range(6):
            above = (pool > thresholds.unsqueeze(1)).double()
            point = pool[choose(predicted(torch.stack([1 - above, above], 2)))].item()
            thresholds = thresholds[(point > thresholds) == (point > truth)]
        return len(thresholds)

    asked = left_over(lambda p: int(acquisition.top(acquisition.bald(p), 1)))
    assert asked <= 512 // 2**6 + 1
    random = [left_over(lambda p: int(torch.randint(len(pool), (1,)))) for _ in range(20)]
    assert np.mean(random) > 3 * asked
    # A batch of three asks for the quarters, not three times for the middle.
    above = (pool > torch.linspace(0, 1, 513)[:-1].unsqueeze(1)).double()
    batch = acquisition.batch_bald(predicted(torch.stack([1 - above, above], 2)), 3)
    np.testing.assert_allclose(sorted(pool[batch].tolist()), [0.25, 0.5, 0.75], atol=0.02)


def test_power_sampling_is_sampling_without_repeats():
    scores = torch.tensor([1.0, 2.0, 5.0, 0.0])
    drawn = torch.stack([acquisition.power_sample(scores, 2) for _ in range(2000)])
    assert (drawn[:, 0] != drawn[:, 1]).all()
    first = drawn[:, 0].bincount(minlength=4)
    assert first[3] == 0
    assert stats.chisquare(first[:3], 2000 * scores[:3].numpy() / 8).pvalue > 0.01
    # Given that the third came first, the second is the first or second as 1 : 2.
    second = drawn[drawn[:, 0] == 2, 1].bincount(minlength=2)
    assert stats.binomtest(int(second[0]), int(second.sum()), 1 / 3).pvalue > 0.01
    # Those without any score come last, but they come.
    assert acquisition.power_sample(scores, 4)[3] == 3
    assert acquisition.power_sample(scores, 1, power=50.0) == 2
    even = torch.cat([acquisition.power_sample(scores, 1, power=0) for _ in range(1000)])
    assert stats.chisquare(even.bincount(minlength=4)).pvalue > 0.01


def test_bad_input():
    draws = torch.full((2, 3, 4), 0.25)
    with pytest.raises(ValueError, match="number=4: the pool has 3 examples"):
        acquisition.batch_bald(predicted(draws), 4)
    with pytest.raises(ValueError, match="number=0: choose at least one"):
        acquisition.top(torch.rand(3), 0)
    with pytest.raises(ValueError, match="scores: negative"):
        acquisition.power_sample(torch.tensor([-1.0, 1.0]), 1)
    with pytest.raises(ValueError, match="NaN"):
        acquisition.top(torch.tensor([torch.nan, 1.0]), 1)
    without = Categorical().predictive(Categorical().sums(draws), 2, None)
    with pytest.raises(ValueError, match="keep_draws=True"):
        acquisition.batch_bald(without, 1)
