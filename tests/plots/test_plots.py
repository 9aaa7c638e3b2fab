"""Figures show the numbers of the metrics, for one model or several, in new axes or given ones."""

import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from bbh import metrics, plots
from bbh.predictive import ClassPredictive, RegressionPredictive


@pytest.fixture
def classes() -> tuple[torch.Tensor, torch.Tensor]:
    probs = (2 * torch.randn(400, 4)).softmax(1)
    return probs, torch.multinomial(probs, 1).squeeze(1)


@pytest.fixture
def curve() -> tuple[torch.Tensor, RegressionPredictive]:
    """A grid in no order, and 30 draws of a line."""
    grid = torch.rand(50, 1) * 4 - 2
    locs = grid + 0.1 * torch.randn(30, 1, 1)
    scales = torch.full((30, 50, 1), 0.2)
    return grid, RegressionPredictive(locs.mean(0), 30, locs=locs, scales=scales)


def lines(figure: Figure) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {str(one.get_label()): one.get_data() for one in figure.axes[0].lines}


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_reliability_is_the_metric(classes):
    probs, targets = classes
    figure = plots.reliability(probs, targets, num_bins=8, fewest=1)
    known = metrics.reliability_curve(probs, targets, 8)
    error = metrics.expected_calibration_error(probs, targets, 8)
    x, y = lines(figure)[f"ECE {error:.3f}"]
    filled = known.count > 0
    np.testing.assert_allclose(x, known.confidence[filled], rtol=1e-6)
    np.testing.assert_allclose(y, known.accuracy[filled])
    # Bins with few examples are left out.
    most = int(known.count.max())
    figure = plots.reliability(probs, targets, num_bins=8, fewest=most)
    assert len(figure.axes[0].lines[1].get_xdata()) == (known.count == most).sum()
    with pytest.raises(ValueError, match="no bin has 401 examples"):
        plots.reliability(probs, targets, fewest=401)


def test_risk_and_coverage_are_the_metric(classes):
    probs, targets = classes
    figure = plots.risk_coverage({"one": probs, "two": probs.flip(1)}, targets)
    assert legend(figure) == ["one", "two"]
    wrong = probs.argmax(1) != targets
    known = metrics.risk_coverage_curve(metrics.entropy(probs), wrong)
    x, y = lines(figure)["one"]
    assert (x[-1], y[-1]) == (100, pytest.approx(100 * wrong.double().mean().item()))
    np.testing.assert_allclose(np.interp(50, x, y), 100 * known.risk[199], atol=0.5)
    # Two models are told by colour and by marker.
    first, second = figure.axes[0].lines
    assert to_hex(first.get_color()) != to_hex(second.get_color())
    assert first.get_marker() != second.get_marker()


def test_entropy_curves_are_distribution_functions(classes):
    probs, _ = classes
    figure = plots.entropy_curves(probs, torch.full((10, 4), 0.25))
    inside, outside = figure.axes[0].lines[:2]
    entropies = metrics.entropy(probs)
    for value in (0.2, 0.8):
        share = np.interp(value, inside.get_xdata(), inside.get_ydata())
        assert share == pytest.approx((entropies <= value).double().mean().item(), abs=0.01)
    np.testing.assert_allclose(outside.get_xdata(), np.log(4), rtol=1e-6)
    assert legend(figure) == ["inside", "outside"]
    with pytest.raises(ValueError, match="inside has a and outside b: pass the same models"):
        plots.entropy_curves({"a": probs}, {"b": probs})


def test_histograms_of_any_score_share_their_bins():
    inside, outside = torch.rand(300), 1 + torch.rand(100)
    figure = plots.entropy_histogram(inside, outside, score="mutual information", threshold=1.5)
    (axes,) = figure.axes
    filled = axes.patches
    first, second = filled[0].get_data(), filled[2].get_data()
    np.testing.assert_array_equal(first.edges, second.edges)
    assert first.values.sum() == pytest.approx(100)
    assert second.values.sum() == pytest.approx(100)
    assert axes.get_xlabel() == "mutual information"
    share = 100 * (outside > 1.5).double().mean().item()
    assert legend(figure)[-1] == f"threshold: {share:.0f} % of outside above"
    plots.entropy_histogram(torch.zeros(5), torch.zeros(5))  # no width


def test_bands_are_standard_deviations_in_the_order_of_the_inputs(curve):
    grid, predictive = curve
    figure = plots.bands(grid, predictive, data=(grid[:5], grid[:5]), truth=grid)
    (axes,) = figure.axes
    x, y = axes.lines[0].get_data()
    assert (np.diff(x) >= 0).all()
    np.testing.assert_allclose(y, predictive.mean[grid[:, 0].argsort(), 0], rtol=1e-6)
    tops = [band.get_paths()[0].vertices[:, 1].max() for band in axes.collections[:3]]
    highest = grid[:, 0].argmax()
    wanted = [
        (predictive.mean + width * predictive.total_std)[highest, 0].item() for width in (1, 2, 3)
    ]
    np.testing.assert_allclose(tops, wanted, rtol=1e-5)
    assert legend(figure) == ["mean", "1, 2, 3 standard deviations", "truth", "data"]


def test_functions_are_single_draws(curve):
    grid, predictive = curve
    figure = plots.functions(grid, predictive, num_draws=7)
    assert legend(figure) == ["7 draws"]
    drawn = figure.axes[0].lines
    assert len(drawn) == 7
    order = grid[:, 0].argsort()
    np.testing.assert_allclose(drawn[3].get_ydata(), predictive.locs[3, order, 0], rtol=1e-6)


def test_examples_are_in_the_order_of_their_entropy():
    sure = torch.linspace(0.55, 0.99, 20)
    probs = torch.stack([sure, 1 - sure], 1)
    targets = torch.ones(20, dtype=torch.long)
    figure = plots.examples(torch.rand(20, 3, 5, 5), probs, targets, number=2)
    titles = [axes.get_title() for part in figure.subfigs for axes in part.axes]
    entropies = metrics.entropy(probs)
    order = [19, 18, 0, 1]
    assert titles == [f"1 as 0\n{entropies[index]:.2g}" for index in order]
    # Of few images there are no more, and names replace numbers.
    few = plots.examples(torch.rand(1, 4, 4), probs[:1], number=9, class_names=["cat", "dog"])
    assert [axes.get_title()[:3] for part in few.subfigs for axes in part.axes] == ["cat"] * 2
    assert few.subfigs[0].axes[0].images


def test_given_axes_are_drawn_in_and_settings_restored(classes, curve):
    probs, targets = classes
    grid, predictive = curve
    before = dict(mpl.rcParams)
    figure = Figure()
    axes = figure.subplots(6)
    returned = [
        plots.reliability({"mine": probs}, targets, axes=axes[0]),
        plots.risk_coverage({"mine": probs}, targets, axes=axes[1]),
        plots.entropy_curves({"mine": probs}, {"mine": probs}, axes=axes[2]),
        plots.entropy_histogram(probs, probs, axes=axes[3]),
        plots.bands(grid, predictive, axes=axes[4]),
        plots.functions(grid, predictive, axes=axes[5]),
    ]
    assert all(one is figure for one in returned)
    assert all(one.get_legend() is not None for one in axes)
    assert dict(mpl.rcParams) == before


def test_predictions_and_probabilities_give_the_same_figure(classes):
    probs, targets = classes
    entropy = metrics.entropy(probs)
    predictive = ClassPredictive(probs, 1, entropy, entropy, *probs.max(1))
    for one in (probs.numpy(), predictive):
        x, y = plots.risk_coverage(one, targets.numpy()).axes[0].lines[0].get_data()
        wanted = plots.risk_coverage(probs, targets).axes[0].lines[0].get_data()
        np.testing.assert_array_equal((x, y), wanted)


def test_bad_input(classes, curve):
    probs, targets = classes
    grid, predictive = curve
    with pytest.raises(ValueError, match="the dictionary of predictions is empty"):
        plots.reliability({}, targets)
    with pytest.raises(ValueError, match="one class per row"):
        plots.risk_coverage(probs, targets[:3])
    with pytest.raises(ValueError, match=r"inputs: shape \[50, 2\].*choose a column"):
        plots.bands(grid.expand(50, 2), predictive)
    with pytest.raises(ValueError, match="inputs: 49 of them"):
        plots.functions(grid[1:], predictive)
    with pytest.raises(ValueError, match=r"images: shape \[400, 16\]"):
        plots.examples(torch.rand(400, 16), probs)
    with pytest.raises(ValueError, match="images: 3 of them"):
        plots.examples(torch.rand(3, 4, 4), probs)
    with pytest.raises(ValueError, match="class_names: 2 names"):
        plots.examples(torch.rand(400, 4, 4), probs, class_names=["a", "b"])
    with pytest.raises(ValueError, match="NaN"):
        plots.entropy_histogram(torch.tensor([torch.nan]), torch.zeros(3))


def test_a_missing_matplotlib_is_named():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import torch, bbh\n"
        "bbh.plots.risk_coverage(torch.full((3, 2), 0.5), torch.zeros(3, dtype=torch.long))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    remedy = "ImportError: figures need Matplotlib: pip install 'bayes-by-hypernet[plots]'."
    assert done.stderr.strip().endswith(remedy)
