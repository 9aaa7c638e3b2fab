"""Draws docs/assets: the idea from a posterior trained here and now, all else from records."""

import base64
import json
import re
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh_studies.attack_columns import ATTACK_TITLES
from bbh_studies.problems.toy.data import INSIDE
from bbh_studies.record import FILE_NAME, Record
from bbh_studies.report.attack_figures import panels
from bbh_studies.report.collect import collect
from bbh_studies.report.drawing import svg_uri
from bbh_studies.report.playground.noise import FILE, bands_of
from bbh_studies.report.toy_figures import draw_functions, with_functions

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#777777"  # Okabe and Ito's colour-blind-safe set
ASSETS = Path(__file__).parent / "assets"


def main() -> None:
    """All of them."""
    mpl.rcParams.update({"font.size": 11, "svg.hashsalt": "bbh", "svg.fonttype": "path"})
    ASSETS.mkdir(exist_ok=True)
    speed()
    floor()
    attacks()
    toy()
    outliers()
    plots()
    noise_bands()
    idea()


def plots() -> None:
    """What docs/plots.md shows: its own code, with a longer training for the regression."""
    page = (Path(__file__).parent / "plots.md").read_text(encoding="utf-8")
    code = "".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    figures: dict[str, Figure] = {}
    for name in bbh.plots.__all__:
        call = f"bbh.plots.{name}("
        code = code.replace(f"\n{call}", f"\nfigures['{name}'] = {call}")
    # The page saves one of them; here they all are.
    code = code.replace("figure = bbh.plots.", "figures['reliability'] = bbh.plots.")
    code = re.sub(r"^figure.savefig.*$", "", code, flags=re.MULTILINE)
    exec(code.replace("epochs=40)", "epochs=600)"), {"figures": figures})
    for name, figure in figures.items():
        path = ASSETS / f"plots-{name.replace('_', '-')}.svg"
        figure.savefig(path, metadata={"Date": None})


def noise_bands() -> None:
    """Not a picture but its numbers: what the slider of a report's playground shows."""
    bands = bands_of(collect([Path(__file__).parents[1] / "results"]))
    FILE.write_text(json.dumps(bands, separators=(",", ":")) + "\n", encoding="utf-8")


def idea() -> None:
    """Trains on 24 points of a cubic with a gap, and draws what happens to the noise."""
    torch.manual_seed(2)
    inputs = torch.cat([torch.empty(12, 1).uniform_(-1, -0.3), torch.empty(12, 1).uniform_(0.3, 1)])
    targets = inputs**3 + 0.05 * torch.randn_like(inputs)
    network = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1))
    posterior = bbh.methods.bayes_by_hypernet(network, bbh.likelihoods.Gaussian(0.05))
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=24)
    bbh.fit(posterior, loader, epochs=3000, beta=bbh.Linear(300, 1500), progress=False)

    figure, axes = plt.subplots(1, 4, figsize=(13, 2.9), width_ratios=[1, 1, 1.2, 1.6])
    figure.subplots_adjust(wspace=0.55)
    _noise(axes[0])
    _generator(axes[1])
    _weights(axes[2], posterior)
    _functions(axes[3], posterior, inputs, targets)
    for left, right in ((0, 1), (1, 2), (2, 3)):
        start, end = axes[left].get_position().x1, axes[right].get_position().x0
        # Left of the middle: the tick labels of the right panel need the rest.
        figure.text(start + 0.32 * (end - start), 0.5, "→", ha="center", va="center", fontsize=20)
    figure.savefig(ASSETS / "idea.svg", bbox_inches="tight", metadata={"Date": None})


def outliers() -> None:
    """Trains two likelihoods on points of a line of which some are far off, and draws both."""
    torch.manual_seed(1)
    inputs = torch.linspace(0, 1, 100).unsqueeze(1)
    targets = 1000 + 50 * inputs + 3 * torch.randn_like(inputs)
    targets[52::4] -= 200 + 50 * torch.rand(12, 1)
    grid = torch.linspace(0, 1, 100).unsqueeze(1)
    figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), sharey=True, layout="constrained")
    for axis, likelihood in zip(
        axes, (bbh.likelihoods.Gaussian(), bbh.likelihoods.StudentT()), strict=True
    ):
        network = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1))
        posterior = bbh.methods.bayes_by_hypernet(network, likelihood)
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=50, shuffle=True)
        bbh.fit(posterior, loader, epochs=400, learning_rate=1e-2, progress=False)
        predictive = bbh.predict(posterior, grid, 200)
        lower, upper = predictive.interval(0.5)
        axis.fill_between(grid[:, 0], lower[:, 0], upper[:, 0], color=BLUE, alpha=0.25, lw=0)
        axis.plot(grid, predictive.mean, color=BLUE)
        axis.plot(inputs, targets, "o", color=ORANGE, markersize=2.5, zorder=0)
        axis.set_title(f"{type(likelihood).__name__}()")
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(ASSETS / "outliers.svg", metadata={"Date": None})


def speed() -> None:
    """Bayes by Backprop on LeNet beside other libraries: a step, and a prediction."""
    folder = Path(__file__).parents[1] / "results" / "bench-cpu" / "side-by-side"
    records = [Record.read(path) for path in sorted(folder.glob(f"lenet-*/{FILE_NAME}"))]
    rows = [one for one in records if one.method == "bbb"]
    if not rows:
        print(f"no speed.svg: there are no records in {folder}.")
        return
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.2), sharey=True)
    panels = (("step_ms", "training step, batch of 100"), ("predict_ms", "100 draws, 250 images"))
    rows.sort(key=lambda one: -one.metrics["step_ms"])
    for axis, (metric, title) in zip(axes, panels, strict=True):
        names = [one.variant.removeprefix("lenet-").replace("bbb", "bbh") for one in rows]
        middle = [one.metrics[metric] for one in rows]
        spread = [
            [abs(one.metrics[metric] - one.metrics[f"{metric}_{end}"]) for one in rows]
            for end in ("q1", "q3")
        ]
        colours = [BLUE if name == "bbh" else "#bbbbbb" for name in names]
        axis.barh(names, middle, xerr=spread, color=colours, ecolor=GREY, height=0.7)
        axis.set(title=title, xlabel="ms; median and quartiles")
        axis.spines[["right", "top"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(ASSETS / "speed.svg", metadata={"Date": None})


def floor() -> None:
    """A step of the largest generator on a GPU, over the time its bytes take at a copy's speed."""
    folder = Path(__file__).parents[1] / "results" / "bench-gpu" / "floor"
    names = {
        "half": "half the bits for Adam's moments",
        "fused": "no gradient in memory: what fit does",
        "graph": "recorded and replayed",
        "eager": "one kernel at a time",
    }
    records = {name: folder / name / FILE_NAME for name in names}
    if not all(path.exists() for path in records.values()):
        print(f"no speed-gpu.svg: there are no records in {folder}.")
        return
    rows = {name: Record.read(path).metrics for name, path in records.items()}
    figure, axis = plt.subplots(figsize=(8, 2.6))
    least = [row["step_ms"] / row["step_over_floor"] for row in rows.values()]
    rest = [
        row["step_ms"] - bytes_alone for row, bytes_alone in zip(rows.values(), least, strict=True)
    ]
    labels = list(names.values())
    axis.barh(labels, least, color=ORANGE, height=0.7, label="its bytes at the speed of a copy")
    axis.barh(labels, rest, left=least, color=BLUE, height=0.7, label="all else")
    axis.set(title="LeNet's layer-wise generator on an H200", xlabel="ms per step; median")
    axis.legend(frameon=False)
    axis.spines[["right", "top"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(ASSETS / "speed-gpu.svg", metadata={"Date": None})


def attacks() -> None:
    """What FGSM and PGD do on both networks: the report's own figures."""
    for network in ("mnist", "cifar5"):
        folder = Path(__file__).parents[1] / "results" / f"{network}-attacks" / "corrected"
        if not folder.exists():
            print(f"no attacks-{network}: there are no records in {folder}.")
            continue
        (group,) = collect([folder])
        for picture in panels(group)[0]:
            for attack in ("fgsm", "pgd"):
                if picture.alt.startswith(ATTACK_TITLES[attack]):
                    _write(f"attacks-{network}-{attack}.svg", picture.uri)


def toy() -> None:
    """The functions that each method finds plausible for x³, the exact posterior first."""
    folder = Path(__file__).parents[1] / "results" / "toy" / "corrected"
    if not folder.exists():
        print(f"no toy.svg: there are no records in {folder}.")
        return
    (group,) = collect([folder])
    rows = sorted(with_functions(group), key=lambda one: not one[0].is_reference)
    figure, axes = plt.subplots(2, 4, figsize=(13, 6), sharex=True, sharey=True)
    *places, last = axes.flat
    for axis, (runs, style, arrays) in zip(places, rows, strict=True):
        draw_functions(axis, style, arrays)
        distance = runs.first.record.metrics["distance_to_nuts"]
        title = "exact posterior" if runs.is_reference else f"{runs.title}: {distance:.1f} away"
        axis.set(title=title, xticks=[-6, -4, 0, 4, 6])
        for edge in (-INSIDE, INSIDE):
            axis.axvline(edge, color=GREY, lw=0.6, ls=":")
        axis.spines[["right", "top"]].set_visible(False)
    last.axis("off")
    lines = [
        last.plot([], [], ".", color="black", label="data: x³ + noise")[0],
        last.plot([], [], "--", color="#444444", label="x³")[0],
        last.plot([], [], color=GREY, label="mean of the functions")[0],
        last.fill_between([], [], [], color=GREY, alpha=0.3, label="1, 2, 3 standard deviations"),
        last.plot([], [], ":", color=GREY, lw=0.6, label="inputs were drawn between these")[0],
    ]
    last.legend(handles=lines, loc="center", frameon=False)
    figure.tight_layout()
    _write("toy.svg", svg_uri(figure))


def _write(name: str, uri: str) -> None:
    """Writes the content of a data URI into the folder of pictures."""
    (ASSETS / name).write_bytes(base64.b64decode(uri.partition("base64,")[2]))


def _noise(axis: Axes) -> None:
    grid = torch.linspace(-3.5, 3.5, 200)
    axis.fill_between(grid, torch.exp(-grid.square() / 2), color=BLUE, alpha=0.3)
    axis.plot(grid, torch.exp(-grid.square() / 2), color=BLUE)
    axis.set(title="noise  z ~ N(0, 1)", xlabel="z", yticks=[], xticks=[-2, 0, 2])
    axis.spines[["left", "right", "top"]].set_visible(False)


def _generator(axis: Axes) -> None:
    layers = [1, 4, 6, 5]
    places = [
        [(column, row - (count - 1) / 2) for row in range(count)]
        for column, count in enumerate(layers)
    ]
    for these, following in pairwise(places):
        for start in these:
            for end in following:
                axis.plot(*zip(start, end, strict=True), color=GREY, lw=0.5, zorder=1)
    for layer in places:
        axis.scatter(*zip(*layer, strict=True), s=70, color="white", edgecolor=BLUE, zorder=2)
    axis.set(title="hypernetwork  G", xlim=(-0.4, 3.4), ylim=(-3.6, 3.6))
    axis.axis("off")


def _weights(axis: Axes, posterior: bbh.Posterior) -> None:
    with torch.no_grad():
        layer = posterior.sample(400)["2.weight"][:, 0]
    # The least correlated pair shows best that the weights lie on a curve, not on a line.
    pair = int(torch.corrcoef(layer.T).abs().argmin())
    first, second = divmod(pair, layer.shape[1])
    axis.scatter(layer[:, first], layer[:, second], s=7, color=ORANGE, alpha=0.4, linewidths=0)
    axis.set(title="weights  w = G(z)", xlabel="one weight against another")
    axis.tick_params(labelsize=9)
    axis.spines[["right", "top"]].set_visible(False)


def _functions(
    axis: Axes, posterior: bbh.Posterior, inputs: torch.Tensor, targets: torch.Tensor
) -> None:
    grid = torch.linspace(-2, 2, 200).unsqueeze(1)
    predictive = bbh.predict(posterior, grid, 200)
    lower, upper = predictive.interval(0.95)
    axis.fill_between(
        grid[:, 0], lower[:, 0], upper[:, 0], color=BLUE, alpha=0.15, label="95 % interval"
    )
    for draw in predictive.locs[:25, :, 0]:
        axis.plot(grid[:, 0], draw, color=BLUE, lw=0.6, alpha=0.5)
    axis.scatter(inputs, targets, s=16, color="black", zorder=3, label="data")
    axis.set(title="functions  y = f(x; w)", xlabel="x", ylabel="y", ylim=(-3, 3))
    axis.legend(loc="lower right", fontsize=9, frameon=False)
    axis.spines[["right", "top"]].set_visible(False)


if __name__ == "__main__":
    main()
