"""Coverage over many random splits: between 1 − α and 1 − α + 1/(n + 1), and Beta given a split."""

import numpy as np
import pytest
import torch
from scipy import stats

import bbh
from bbh.decisions import (
    AbsoluteResidual,
    Adaptive,
    ConformalIntervals,
    ConformalSets,
    LeastAmbiguous,
    Normalised,
    Quantiles,
)
from bbh.decisions.predictions import class_probabilities
from bbh.predictive import RegressionPredictive

SPLITS = 300


def classes(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Predictions that are far too sure, and their classes."""
    logits = torch.randn(number, 5)
    targets = torch.multinomial(logits.softmax(1), 1).squeeze(1)
    return (4 * logits).softmax(1), targets


@pytest.mark.parametrize(
    "score",
    [LeastAmbiguous(), Adaptive(randomised=True), Adaptive(penalty=0.05, free_classes=2)],
    ids=repr,
)
@pytest.mark.parametrize(("n", "alpha"), [(19, 0.1), (60, 0.3)])
def test_sets_cover_as_promised_on_average(score, n, alpha):
    new = 20
    covered = []
    for _ in range(SPLITS):
        probs, targets = classes(n + new)
        sets = ConformalSets.fit(probs[:n], targets[:n], alpha, score=score)(probs[n:])
        covered.append(sets[torch.arange(new), targets[n:]].double().mean().item())
    error = np.std(covered) / np.sqrt(SPLITS)
    k = int(np.ceil((n + 1) * (1 - alpha) - 1e-9))
    # Without ties the expectation is known exactly; four standard errors either side.
    assert np.mean(covered) == pytest.approx(k / (n + 1), abs=4 * error)
    assert 1 - alpha - 4 * error <= np.mean(covered) <= 1 - alpha + 1 / (n + 1) + 4 * error


def test_coverage_given_the_held_out_data_follows_the_beta_law():
    n, alpha = 40, 0.2
    coverage = []
    for _ in range(SPLITS):
        found = ConformalIntervals.fit(
            torch.zeros(n), torch.randn(n), alpha, score=AbsoluteResidual()
        )
        coverage.append(2 * stats.norm.cdf(found.widening.item()) - 1)
    k = int(np.ceil((n + 1) * (1 - alpha)))
    assert stats.kstest(coverage, stats.beta(k, n + 1 - k).cdf).pvalue > 0.01


def test_with_confidence_few_held_out_sets_cover_too_little():
    n, alpha, confidence = 100, 0.1, 0.9
    too_low = 0
    for _ in range(SPLITS):
        found = ConformalIntervals.fit(
            (torch.zeros(n), torch.ones(n)), torch.randn(n), alpha, confidence=confidence
        )
        too_low += 2 * stats.norm.cdf(found.widening.item()) - 1 < 1 - alpha
    exact = stats.beta(95, 6).cdf(1 - alpha)  # the 95th smallest of 100 is the first that will do
    assert stats.beta(94, 7).cdf(1 - alpha) > 1 - confidence >= exact
    assert stats.binomtest(too_low, SPLITS, exact).pvalue > 0.01


def regression(number: int) -> tuple[RegressionPredictive, torch.Tensor]:
    """Noise that grows with the input, of which the prediction knows half."""
    inputs = torch.rand(number, 2)
    targets = inputs + (0.1 + inputs) * torch.randn(number, 2)
    locs = inputs + 0.1 * torch.randn(7, 1, 2)
    scales = (0.5 * (0.1 + inputs)).expand(7, number, 2)
    return RegressionPredictive(locs.mean(0), 7, locs=locs, scales=scales), targets


def part(predictive: RegressionPredictive, chosen: slice) -> RegressionPredictive:
    locs, scales = predictive.locs[:, chosen], predictive.scales[:, chosen]
    return RegressionPredictive(locs.mean(0), len(locs), locs=locs, scales=scales)


@pytest.mark.parametrize("score", [AbsoluteResidual(), Normalised(), Quantiles()], ids=repr)
def test_intervals_cover_each_output_on_average(score):
    n, alpha, splits, new = 30, 0.25, 80, 20
    covered = []
    for _ in range(splits):
        predictive, targets = regression(n + new)
        found = ConformalIntervals.fit(part(predictive, slice(n)), targets[:n], alpha, score=score)
        lower, upper = found(part(predictive, slice(n, None)))
        inside = (lower <= targets[n:]) & (targets[n:] <= upper)
        covered.append(inside.double().mean(0).numpy())
    mean, error = np.mean(covered, 0), np.std(covered, 0) / np.sqrt(splits)
    k = int(np.ceil((n + 1) * (1 - alpha)))
    assert np.all(np.abs(mean - k / (n + 1)) < 4 * error)


def test_normalised_intervals_are_wider_where_the_prediction_is_less_certain():
    predictive, targets = regression(200)
    lower, upper = ConformalIntervals.fit(predictive, targets)(predictive)
    widths = upper - lower
    torch.testing.assert_close(
        widths / predictive.total_std, (widths / predictive.total_std)[:1].expand(200, 2)
    )
    lower, upper = ConformalIntervals.fit(predictive, targets, score=AbsoluteResidual())(predictive)
    torch.testing.assert_close(upper - lower, (upper - lower)[:1].expand(200, 2))


def test_intervals_from_arrays_are_those_from_predictions():
    predictive, targets = regression(80)
    pairs = {
        AbsoluteResidual(): predictive.mean.numpy(),
        Normalised(): (predictive.mean.numpy(), predictive.total_std.numpy()),
        Quantiles(): tuple(end.numpy() for end in predictive.interval(0.8)),
    }
    for score, arrays in pairs.items():
        wanted = ConformalIntervals.fit(predictive, targets, 0.2, score=score)
        found = ConformalIntervals.fit(arrays, targets.numpy(), 0.2, score=score)
        for one, other in zip(wanted(predictive), found(arrays), strict=True):
            assert one.dtype == torch.float32
            torch.testing.assert_close(one, other.float())


def test_quantiles_that_are_too_far_apart_are_drawn_in_and_never_cross():
    lower, upper = torch.full((50,), -10.0), torch.full((50,), 10.0)
    found = ConformalIntervals.fit((lower, upper), torch.randn(50), score=Quantiles())
    assert found.widening < -5
    low, high = found((torch.tensor([-1.0]), torch.tensor([1.0])))
    assert low == high == 0


def test_adaptive_scores_by_hand():
    probs = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64)
    torch.testing.assert_close(Adaptive().of(probs), probs.new_tensor([[0.8, 0.0, 0.5]]))
    penalised = Adaptive(penalty=0.1, free_classes=1).of(probs)
    torch.testing.assert_close(penalised, probs.new_tensor([[1.0, 0.0, 0.6]]))
    random = torch.stack([Adaptive(randomised=True).of(probs) for _ in range(2000)]).mean(0)
    torch.testing.assert_close(random, probs.new_tensor([[0.9, 0.25, 0.65]]), atol=0.02, rtol=0)


def test_adaptive_sets_are_never_empty_and_short_where_the_prediction_is_sure():
    probs, targets = classes(200)
    sets = ConformalSets.fit(probs, targets, score=Adaptive())
    sizes = sets(probs).sum(1)
    assert sizes.min() == 1
    assert sets(torch.tensor([[0.999, 0.001, 0.0, 0.0, 0.0]])).tolist() == [[True] + [False] * 4]
    assert sets(torch.full((1, 5), 0.2)).sum() >= sizes.max()
    # A set is the likeliest classes in order: no class is skipped.
    ordered = sets(probs).gather(1, probs.argsort(1, descending=True))
    assert (ordered.int().diff(dim=1) <= 0).all()


def test_empty_sets_can_be_forbidden():
    probs = torch.tensor([[0.9, 0.1]]).expand(20, 2)
    targets = torch.zeros(20, dtype=torch.long)
    doubtful = torch.tensor([[0.6, 0.4]])
    assert ConformalSets.fit(probs, targets)(doubtful).tolist() == [[False, False]]
    sets = ConformalSets.fit(probs, targets, allow_empty=False)
    assert sets(doubtful).tolist() == [[True, False]]


def test_bad_input():
    probs, targets = classes(30)
    predictive, real = regression(30)
    with pytest.raises(ValueError, match=r"alpha=0\.01 needs at least 99 held-out examples, and"):
        ConformalSets.fit(probs, targets, 0.01)
    with pytest.raises(ValueError, match="predictions have 4 classes; the held-out ones had 5"):
        ConformalSets.fit(probs, targets)(torch.full((2, 4), 0.25))
    with pytest.raises(TypeError):
        ConformalSets.fit(probs, targets, score="aps")
    with pytest.raises(TypeError, match="for regression there is"):
        class_probabilities(predictive)
    with pytest.raises(TypeError, match=r"pair: \(means and standard deviations\)"):
        ConformalIntervals.fit(predictive.mean, real)
    with pytest.raises(ValueError, match=r"targets: shape \[30\] differs"):
        ConformalIntervals.fit(predictive, real[:, 0])
    with pytest.raises(ValueError, match="not positive everywhere"):
        ConformalIntervals.fit((real, real * 0), real)
    with pytest.raises(ValueError, match="above upper"):
        ConformalIntervals.fit((real + 1, real), real, score=Quantiles())
    with pytest.raises(ValueError, match="outputs of shape"):
        ConformalIntervals.fit(predictive, real)((real[:, 0], real[:, 0].abs() + 1))


def test_straight_from_a_posterior_and_a_loader():
    network = torch.nn.Linear(2, 3)
    posterior = bbh.methods.bayes_by_backprop(network, bbh.likelihoods.Categorical())
    data = torch.utils.data.TensorDataset(torch.randn(50, 2), torch.randint(3, (50,)))
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    samples = posterior.sample(20)
    predictive, targets = bbh.predict_with_targets(posterior, loader, samples=samples)
    assert predictive.num_samples == 20
    # The loader shuffles, and predictions still belong to their targets.
    ordered = bbh.predict(posterior, data.tensors[0], samples=samples).mean
    nearest = torch.cdist(predictive.mean, ordered).argmin(1)
    assert (data.tensors[1][nearest] == targets).all()
    sets = ConformalSets.fit(predictive, targets)(predictive)
    assert sets.shape == (50, 3)
    assert sets[torch.arange(50), targets].sum() >= 46  # ⌈51 · 0.9⌉ of the held-out ones
