"""Figures of a study, made from its records only: nothing is trained here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from bbh import metrics
from bbh_studies.columns import METRICS
from bbh_studies.report import drawing
from bbh_studies.report.collect import Group, Runs
from bbh_studies.report.drawing import Style
from bbh_studies.report.published import Published
from bbh_studies.report.tables import Table

Drawn = tuple[Runs, Style, dict[str, np.ndarray]]
_NUM_BINS = 15
_FEWEST = 10  # least images in a bin of the reliability diagram: fewer tell nothing
# Curves are drawn on a logarithmic axis if they span more than this.
_LOGARITHMIC_SPAN = 20.0
# Logarithmic axes that span less have numbers between the powers of ten too.
_MANY_POWERS = 1e4


@dataclass(frozen=True)
class Picture:
    """A figure on the page.

    Attributes:
        uri: The figure itself, as a data URI.
        caption: What it shows.
        alt: Description for readers who cannot see it.
    """

    uri: str
    caption: str
    alt: str


def curves(group: Group, table: Table, paper: Published) -> list[Picture]:
    """The figures for which the records hold what they need."""
    with drawing.figure_style():
        pictures = (
            _trade_off(group, table, paper),
            _entropies(group),
            _reliability(group),
            _risk_coverage(group),
            *(_training(group, key) for key in _HISTORY),
        )
        return [one for one in pictures if one is not None]


def with_arrays(group: Group, *names: str) -> list[Drawn]:
    """Rows whose first record has all these arrays with finite values, and their styles."""
    chosen = drawing.styles(group.rows)
    return [
        (runs, chosen[runs], runs.first.arrays)
        for runs in group.rows
        if all(_usable(runs.first.arrays.get(name)) for name in names)
    ]


def _usable(values: np.ndarray | None) -> bool:
    """Whether there is something to draw; a failed run may have left values that are not finite."""
    if values is None or not values.size:
        return False
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def _names(drawn: Sequence[Runs]) -> str:
    return ", ".join(runs.label for runs in drawn)


def _entropies(group: Group) -> Picture | None:
    drawn = with_arrays(group, "entropy", "outlier_entropy")
    if not drawn:
        return None
    figure, axes = drawing.new_axes(
        xlabel="predictive entropy [nats]", ylabel="share of images below", ylim=(0, 1.01)
    )
    levels = np.linspace(0, 1, drawing.MAX_POINTS)
    for runs, style, arrays in drawn:
        for name, dash in (("entropy", "-"), ("outlier_entropy", "--")):
            values = np.quantile(arrays[name].astype(float), levels)
            label = runs.label if dash == "-" else None
            axes.plot(values, levels, dash, label=label, **_line(style, values))
    axes.set_xlim(left=0)
    _outlier_key(axes)
    drawing.legend_below(figure, axes)
    return Picture(
        drawing.svg_uri(figure),
        "Predictive entropy: share of images whose entropy is below a value. Test images (solid) "
        "should rise at once, outliers (dashed) late.",
        f"Distribution functions of the predictive entropy on test images and on outliers for "
        f"{_names([runs for runs, _, _ in drawn])}.",
    )


def _outlier_key(axes: Axes) -> None:
    axes.plot([], [], "-", color="#777777", label="test images")
    axes.plot([], [], "--", color="#777777", label="outliers")


def _line(style: Style, x: np.ndarray) -> dict[str, Any]:
    """Colour and a few markers, so that curves can be told apart without colours."""
    places = (np.linspace(0.15, 0.85, 3) * (len(x) - 1)).round().astype(int)
    return {
        "color": style.colour,
        "marker": style.marker,
        "markersize": 5,
        "markevery": places.tolist(),
    }


def _reliability(group: Group) -> Picture | None:
    drawn = with_arrays(group, "confidence", "correct")
    if not drawn:
        return None
    figure, axes = drawing.new_axes(
        xlabel="confidence", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.02)
    )
    axes.plot([0, 1], [0, 1], ":", color="#777777", label="perfect")
    for runs, style, arrays in drawn:
        confidence, correct = arrays["confidence"].astype(float), arrays["correct"].astype(float)
        bins = np.minimum((confidence * _NUM_BINS).astype(int), _NUM_BINS - 1)
        number = np.bincount(bins, minlength=_NUM_BINS)
        kept = number >= _FEWEST
        x = np.bincount(bins, confidence, _NUM_BINS)[kept] / number[kept]
        y = np.bincount(bins, correct, _NUM_BINS)[kept] / number[kept]
        error = runs.first.record.metrics.get("ece")
        label = runs.label + ("" if error is None else f" ({METRICS['ece'].format(error)})")
        axes.plot(x, y, "-", color=style.colour, marker=style.marker, markersize=5, label=label)
    drawing.legend_below(figure, axes)
    return Picture(
        drawing.svg_uri(figure),
        "Reliability: accuracy among test images of like confidence, with the expected calibration "
        "error (ECE) in brackets. Above the dotted line a method is more often right than it says. "
        f"Bins with fewer than {_FEWEST} images are left out.",
        f"Reliability diagram of {_names([runs for runs, _, _ in drawn])}.",
    )


def _risk_coverage(group: Group) -> Picture | None:
    drawn = with_arrays(group, "entropy", "correct")
    if not drawn:
        return None
    figure, axes = drawing.new_axes(
        xlabel="images answered, surest first [%]", ylabel="error among them [%]", xlim=(0, 102)
    )
    for runs, style, arrays in drawn:
        curve = metrics.risk_coverage_curve(
            torch.from_numpy(arrays["entropy"].astype(np.float32)),
            torch.from_numpy(~arrays["correct"].astype(bool)),
        )
        x = 100 * drawing.thin(curve.coverage.numpy())
        y = 100 * drawing.thin(curve.risk.numpy())
        axes.plot(x, y, label=runs.label, **_line(style, x))
    axes.set_ylim(bottom=0)
    drawing.legend_below(figure, axes)
    return Picture(
        drawing.svg_uri(figure),
        "Risk and coverage: the error that is left if only the images of least entropy are "
        "answered. Lower is better everywhere; the right end is the plain error.",
        f"Risk-coverage curves of {_names([runs for runs, _, _ in drawn])}.",
    )


_HISTORY = {
    "total": ("objective", "Objective in training: NLL per datum plus weighted complexity."),
    "nll": ("NLL [nats]", "Negative log likelihood per training datum."),
    "complexity": (
        "complexity [nats]",
        "Complexity: (estimated) distance of the posterior from the prior. Scales differ between "
        "methods: a point has −log prior density, a distribution a divergence.",
    ),
}


def _training(group: Group, key: str) -> Picture | None:
    chosen = drawing.styles(group.rows)
    found = [(runs, *_history(runs, key)) for runs in group.rows]
    found = [(runs, x, y) for runs, x, y in found if len(x) > 1]
    if not found:
        return None
    label, caption = _HISTORY[key]
    figure, axes = drawing.new_axes(xlabel="epoch", ylabel=label)
    for runs, x, y in found:
        axes.plot(x, y, label=runs.label, **_line(chosen[runs], x))
    values = np.concatenate([y for _, _, y in found])
    if values.min() > 0 and values.max() / values.min() > _LOGARITHMIC_SPAN:
        axes.set_yscale("log")
        # Powers of ten alone would leave a short axis with a single number.
        between = (1, 2, 5) if values.max() / values.min() < _MANY_POWERS else (1,)
        axes.yaxis.set_major_locator(LogLocator(subs=between))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel(f"{label}, logarithmic")
    drawing.legend_below(figure, axes)
    alt = f"{label} against epoch for {_names([runs for runs, _, _ in found])}."
    return Picture(drawing.svg_uri(figure), caption, alt)


def _history(runs: Runs, key: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = [
        (epoch.get("epoch", i + 1), epoch[key])
        for i, epoch in enumerate(runs.first.record.history)
        if isinstance(epoch.get(key), int | float)
    ]
    values = np.array(pairs, dtype=float).reshape(-1, 2)
    values = drawing.thin(values[np.isfinite(values).all(1)])
    return values[:, 0], values[:, 1]


def _trade_off(group: Group, table: Table, paper: Published) -> Picture | None:
    points = list(_points(table))
    if len(points) < 2:
        return None
    chosen = drawing.styles(group.rows)
    figure, axes = drawing.new_axes(
        xlabel="error [%], lower is better",
        ylabel="entropy AUC on outliers, lower is better",
    )
    hollow = False
    for runs, error, auc, spread in points:
        style = chosen[runs]
        form: dict[str, Any] = {
            "color": style.colour,
            "marker": style.marker,
            "linestyle": "none",
        }
        axes.errorbar(error, auc, yerr=spread[1], xerr=spread[0], color=style.colour, lw=1)
        axes.plot([error], [auc], markersize=7, label=runs.label, **form)
        theirs = [paper.get(runs.variant, name) for name in ("error", "outlier_entropy_auc")]
        if None not in theirs:
            hollow = True
            at = [[float(one)] for one in theirs if one is not None]
            axes.plot(*at, markerfacecolor="none", markersize=9, **form)
    if hollow:
        axes.plot([], [], "o", color="#777777", markerfacecolor="none", label="the paper")
    drawing.legend_below(figure, axes)
    names = _names([runs for runs, *_ in points])
    return Picture(
        drawing.svg_uri(figure),
        "Error against entropy on outliers: down and to the left is better. Filled: ours, mean "
        "and standard deviation over seeds."
        + (" Hollow: the paper's single runs." if hollow else ""),
        f"Test error against entropy AUC on outliers for {names}.",
    )


def _points(table: Table) -> Iterator[tuple[Runs, float, float, tuple[float, float]]]:
    errors, areas = table.column("error"), table.column("outlier_entropy_auc")
    for runs in (runs for runs in errors if runs in areas):
        x, y = errors[runs].statistic, areas[runs].statistic
        if np.isfinite([x.mean, y.mean]).all():
            yield runs, x.mean, y.mean, (x.std or 0.0, y.std or 0.0)
