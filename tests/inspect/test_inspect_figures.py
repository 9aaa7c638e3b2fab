"""Figures say what they show, on scales that can be compared."""

import json
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from PIL import Image
from scipy import stats
from torch import nn

import bbh
from bbh.inspect import Correlation, Marginals, draw_correlation, draw_marginals, draw_spread, look
from bbh.inspect.figures import density
from bbh.methods import Particles
from scenarios import SmallLeNet

BLUE, ORANGE = "#0072b2", "#d55e00"


@pytest.fixture
def lenet():
    return bbh.methods.bayes_by_backprop(SmallLeNet(), bbh.likelihoods.Categorical())


def test_marginals_are_a_grid_of_five_by_five(lenet):
    figure = draw_marginals(look(lenet, num_samples=200).marginals)
    assert len(figure.axes) == 25
    titles = [axes.get_title() for axes in figure.axes]
    # In PyTorch's order: the first filter's nine weights, then the second's.
    assert (titles[0], titles[8], titles[9]) == ("[0, 0, 0, 0]", "[0, 0, 2, 2]", "[1, 0, 0, 0]")
    assert figure.get_suptitle() == "conv1.weight: 25 weights, 200 draws"
    assert "dip test, p < 0.05" in figure.get_supxlabel()
    assert all(not axes.get_yticks().size for axes in figure.axes)
    # Histograms are densities, as the curves are.
    bars = figure.axes[0].patches
    assert sum(bar.get_width() * bar.get_height() for bar in bars) == pytest.approx(1)


def test_modes_are_told_by_colour_and_in_numbers():
    one = torch.randn(400)
    two = one + 6 * torch.tensor([0.0, 1.0]).repeat(200)
    draws = torch.stack([one, two, torch.ones(400)], dim=1)
    figure = draw_marginals(Marginals.of("w", torch.Size([3]), draws))
    first, second, third = figure.axes
    assert to_hex(first.lines[0].get_color()) == BLUE
    assert to_hex(second.lines[0].get_color()) == ORANGE
    assert second.texts[0].get_text().startswith("p ≤ 0.001  κ −1.")
    assert third.texts[0].get_text() == "constant"


def test_correlations_have_a_fixed_scale():
    weak = Correlation.of("w", torch.randn(500, 10))
    figure = draw_correlation(weak)
    axes, bar = figure.axes
    (image,) = axes.images
    assert image.get_clim() == (-1, 1)
    # No correlation has no colour, and both signs are equally strong.
    assert min(image.cmap(0.5)[:3]) > 0.95
    assert bar.get_ylabel() == "correlation over draws"
    assert axes.get_title() == "w, 500 draws; 0% of pairs beyond ±0.5"
    assert axes.get_xlabel() == axes.get_ylabel() == "weight, in the tensor's order"
    np.testing.assert_array_equal(image.get_array(), weak.matrix)


def test_spread_names_every_tensor_and_both_scales(lenet):
    spread = look(lenet, num_samples=100).spread
    left, right = draw_spread(spread).axes
    assert (left.get_xscale(), right.get_xscale()) == ("log", "log")
    assert left.get_title() == "all 345 weights"
    assert left.get_xlabel() == "standard deviation of a weight"
    assert sum(bar.get_height() for bar in left.patches) == 345
    assert [label.get_text() for label in right.get_yticklabels()] == list(spread.stds)
    assert "fan-in scales" in right.get_xlabel()
    labels = [text.get_text() for text in right.get_legend().get_texts()]
    assert labels == ["fan-in scale", "sign of collapse"]
    medians = [line for line in right.lines if line.get_marker() == "o"]
    expected = float(np.median(spread.relative("conv1.weight")))
    assert medians[0].get_xdata()[0] == pytest.approx(expected, rel=1e-6)


def test_spread_of_a_deep_network_shows_kernels_only():
    network = nn.Sequential(*(nn.Linear(2, 2) for _ in range(30)))
    posterior = bbh.methods.bayes_by_backprop(network, bbh.likelihoods.Categorical())
    _, right = draw_spread(look(posterior, num_samples=10).spread).axes
    shown = [label.get_text() for label in right.get_yticklabels()]
    assert shown == [f"{index}.weight" for index in range(30)]


def test_spread_of_equal_draws_is_drawn_empty():
    members = {"weight": torch.ones(3, 2, 4), "bias": torch.zeros(3, 2)}
    posterior = bbh.Posterior(
        nn.Linear(4, 2), Particles(members), bbh.priors.Normal(1.0), bbh.likelihoods.Gaussian()
    )
    left, _ = draw_spread(look(posterior).spread).axes
    assert left.texts[0].get_text() == "10 do not vary"


def test_density_is_that_of_scipy():
    values = np.random.default_rng(0).normal(size=300)
    places = np.linspace(-3, 3, 20)
    width = 0.9 * min(values.std(), np.ptp(np.quantile(values, (0.25, 0.75))) / 1.34) * 300**-0.2
    expected = stats.gaussian_kde(values, width / values.std(ddof=1))(places)
    np.testing.assert_allclose(density(values, places), expected, rtol=1e-10)


def test_saving_writes_figures_and_numbers(lenet, tmp_path):
    looked = look(lenet, torch.randn(5, 1, 8, 8), num_samples=50)
    with mpl.rc_context({"figure.facecolor": "black"}):
        folder = looked.save(tmp_path / "looked")
        assert mpl.rcParams["figure.facecolor"] == "black"
    written = sorted(path.name for path in folder.iterdir())
    assert written == ["correlation.png", "inspection.json", "marginals.png", "spread.png"]
    assert json.loads((folder / "inspection.json").read_text()) == looked.numbers()
    for name in ("correlation", "marginals", "spread"):
        with Image.open(folder / f"{name}.png") as image:
            assert min(image.size) > 400
            assert image.convert("RGB").getpixel((2, 2)) == (255, 255, 255)


def test_numbers_need_no_matplotlib():
    code = (
        "import sys, torch, bbh\n"
        "posterior = bbh.methods.bayes_by_backprop(\n"
        "    torch.nn.Linear(2, 3), bbh.likelihoods.Categorical())\n"
        "bbh.inspect.look(posterior, torch.zeros(5, 2), 10)\n"
        "print('matplotlib' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
