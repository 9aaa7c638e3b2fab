"""Figures of a posterior over weights: one function for each, which takes the measurements."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from bbh.inspect.collapse import NO_SPREAD
from bbh.inspect.correlation import Correlation
from bbh.inspect.dip import dip_p_value, dip_statistic
from bbh.inspect.marginals import SIGNIFICANT, Marginals, quantiles
from bbh.inspect.spread import Spread
from bbh.plots.canvas import BLUE, GREY, ORANGE, PLAIN, figure_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 150
# Red and blue around white: distinguishable by colour-blind readers, and white for no correlation.
_DIVERGING = "RdBu_r"
_COLUMNS = 5
# The largest number of tensors in the spread figure: more names would not be readable.
_MOST_ROWS = 40


def draw_marginals(marginals: Marginals) -> "Figure":
    """Histogram and kernel density of every weight, in rows of five, with separate axes.

    A weight is orange if the dip test rejects a single mode. The p-value and the excess kurtosis
    are in the corner.
    """
    number = len(marginals.places)
    rows = -(-number // _COLUMNS)
    columns = min(number, _COLUMNS)
    with figure_style(PLAIN):
        figure = _figure(1.75 * columns + 0.2, 1.5 * rows + 0.9)
        grid = figure.subplots(rows, columns, squeeze=False)
        for index, axes in enumerate(grid.flat):
            if index >= number:
                axes.set_axis_off()
                continue
            place = ", ".join(map(str, marginals.places[index]))
            _marginal(axes, marginals.draws[:, index].double().numpy())
            axes.set_title(f"[{place}]", fontsize=8, pad=3)
        samples = len(marginals.draws)
        figure.suptitle(f"{marginals.tensor}: {number} weights, {samples:,} draws", fontsize=10.5)
        figure.supxlabel(
            f"weight; orange: more than one mode (dip test, p < {SIGNIFICANT:g}); "
            "κ: excess kurtosis",
            fontsize=9,
        )
    return figure


def draw_correlation(correlation: Correlation) -> "Figure":
    """Heat map of the correlations; colours always cover −1 to 1, so that maps are comparable."""
    with figure_style(PLAIN):
        figure = _figure(6.0, 5.0)
        axes = figure.subplots()
        from matplotlib import colormaps

        colours = colormaps[_DIVERGING].with_extremes(bad=GREY)
        image = axes.imshow(correlation.matrix.numpy(), cmap=colours, vmin=-1, vmax=1)
        bar = figure.colorbar(image, ax=axes, ticks=[-1, -0.5, 0, 0.5, 1], fraction=0.046)
        bar.set_label("correlation over draws")
        share = correlation.strong_share
        beyond = "" if share is None else f"; {share:.0%} of pairs beyond ±0.5"
        axes.set(
            title=f"{correlation.tensor}, {correlation.num_samples:,} draws{beyond}",
            xlabel="weight, in the tensor's order",
            ylabel="weight, in the tensor's order",
        )
        axes.spines[["top", "right"]].set_visible(True)
    return figure


def draw_spread(spread: Spread) -> "Figure":
    """Standard deviations as a histogram over all weights, and by tensor in fan-in scales."""
    shown = [name for name in spread.stds if len(spread.stds) <= _MOST_ROWS or _is_kernel(name)]
    shown = shown[:_MOST_ROWS]
    with figure_style(PLAIN):
        figure = _figure(8.6, max(3.4, 0.19 * len(shown) + 1.2))
        left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
        _spread_histogram(left, spread.everywhere)
        _spread_of_tensors(right, spread, shown)
    return figure


def write_png(figure: "Figure", path: Path) -> None:
    """Writes a figure of this module; saving applies the style too, as some settings act then."""
    with figure_style(PLAIN):
        figure.savefig(path, format="png", dpi=_DPI)


def density(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Gaussian kernel density of a sample, with the rule-of-thumb bandwidth of Silverman (1986).

    The bandwidth follows the smaller of the standard deviation and the scaled interquartile range,
    so that two modes are not smoothed into one.
    """
    quarters = np.quantile(values, (0.25, 0.75))
    scales = [scale for scale in (values.std(), np.ptp(quarters) / 1.34) if scale > 0]
    width = 0.9 * min(scales) * len(values) ** -0.2
    kernels = np.exp(-(((places[:, None] - values) / width) ** 2) / 2)
    return kernels.mean(1) / (width * np.sqrt(2 * np.pi))


def _marginal(axes: "Axes", values: np.ndarray) -> None:
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.tick_params(labelsize=7, pad=2)
    axes.xaxis.get_offset_text().set_fontsize(7)
    axes.locator_params(axis="x", nbins=3)
    if np.ptp(values) == 0:
        axes.axvline(values[0], color=GREY)
        axes.text(0.98, 0.9, "constant", transform=axes.transAxes, ha="right", fontsize=7)
        return
    p = dip_p_value(dip_statistic(values), len(values))
    colour = ORANGE if p < SIGNIFICANT else BLUE
    axes.hist(values, bins=30, density=True, color=colour, alpha=0.35)
    places = np.linspace(values.min(), values.max(), 200)
    axes.plot(places, density(values, places), color=colour, linewidth=1.2)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 1.35)  # room for the numbers
    centred = values - values.mean()
    kurtosis = (centred**4).mean() / (centred**2).mean() ** 2 - 3
    words = f"p {_p_words(p)}  κ {kurtosis:.1f}".replace("-", "−")
    axes.text(0.98, 0.98, words, transform=axes.transAxes, ha="right", va="top", fontsize=7)


def _p_words(p: float) -> str:
    """The p-value as text; values beyond the table of ``dip_p_value`` are given as bounds."""
    return "> 0.5" if p > 0.5 else "≤ 0.001" if p < 0.00101 else f"{p:.2g}"


def _spread_histogram(axes: "Axes", stds: Tensor) -> None:
    positive = stds[stds > 0].numpy()
    axes.set(xlabel="standard deviation of a weight", ylabel="weights")
    axes.set_title(f"all {len(stds):,} weights")
    if len(positive) < len(stds):
        constant = f"{len(stds) - len(positive):,} do not vary"
        axes.text(0.02, 0.97, constant, transform=axes.transAxes, va="top", fontsize=8)
    if not len(positive):
        return
    axes.set_xscale("log")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    # The axis covers at least a factor of ten: for equal spreads, bins would have no width.
    middle = np.log10(np.median(positive))
    low = min(np.log10(positive.min()), middle - 0.5)
    high = max(np.log10(positive.max()), middle + 0.5)
    axes.hist(positive, bins=np.logspace(low, high, 50).tolist(), color=BLUE, alpha=0.7)


def _spread_of_tensors(axes: "Axes", spread: Spread, shown: list[str]) -> None:
    axes.set_xscale("log")
    smallest = NO_SPREAD
    for row, name in enumerate(shown):
        low, middle, high = quantiles(spread.relative(name)) or (0.0, 0.0, 0.0)
        if middle == 0:
            continue  # zero is not on a logarithmic axis; the histogram counts these weights
        axes.plot([max(low, middle * 1e-3), high], [row, row], color=BLUE, linewidth=2, alpha=0.5)
        axes.plot(middle, row, "o", color=BLUE, markersize=4)
        smallest = min(smallest, middle)
    axes.axvline(1, color=GREY, linewidth=1, linestyle="--", label="fan-in scale")
    axes.axvline(NO_SPREAD, color=ORANGE, linewidth=1, linestyle=":", label="sign of collapse")
    axes.set_yticks(range(len(shown)), shown, fontsize=8)
    axes.set_ylim(len(shown) - 0.5, -0.5)  # the first layer on top
    axes.set_xlim(left=smallest / 2)
    axes.set_xlabel("in fan-in scales: median, and nine of ten")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=2, borderaxespad=0)
    axes.set_title("by tensor", pad=4)


def _is_kernel(name: str) -> bool:
    return name.endswith("weight")


def _figure(width: float, height: float) -> "Figure":
    """An empty figure, made without pyplot, which would open windows and keep global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
