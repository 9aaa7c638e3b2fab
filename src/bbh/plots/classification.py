"""Figures of classifiers: reliability, risk against coverage, entropy inside and outside."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bbh import checks, metrics
from bbh.decisions.predictions import Array
from bbh.metrics.calibration import binned
from bbh.plots.canvas import BLUE, GREY, MAX_POINTS, ORANGE, drawn_in, figure_of, marked, thin
from bbh.plots.rows import Classes, Row, Several, doubt, inside_and_outside, judged

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BINS = 40


def reliability(
    predictions: Several,
    targets: Array,
    *,
    num_bins: int = 15,
    fewest: int = 10,
    axes: "Axes | None" = None,
) -> "Figure":
    """Accuracy among predictions of like confidence: on the diagonal a model is calibrated.

    Above the diagonal it is more often right than it says, below it is too sure. The expected
    calibration error (ECE) is in the legend.

    Args:
        predictions: A prediction of ``bbh.predict``, probabilities [B, C], or a dictionary of
            several, by the name of their model.
        targets: The true classes.
        num_bins: The number of bins of equal width between 0 and 1.
        fewest: Bins with fewer examples are left out: they tell nothing.
        axes: Where to draw; None makes a figure.
    """
    checks.whole("num_bins", num_bins, 1, "give the number of bins")
    rows = [row._replace(label=_with_error(row, num_bins)) for row in judged(predictions, targets)]
    if not any((_binned(row, num_bins).count >= fewest).any() for row in rows):
        raise ValueError(
            f"no bin has {fewest} examples (fewest={fewest}): take fewer bins, or fewest=1."
        )
    with drawn_in(axes) as place:
        draw_reliability(place, rows, num_bins, fewest)
    return figure_of(place)


def draw_reliability(
    axes: "Axes", rows: Sequence[Row], num_bins: int = 15, fewest: int = 10
) -> None:
    """Draws rows that have ``confidence`` and ``correct``."""
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.02))
    axes.plot([0, 1], [0, 1], ":", color=GREY, label="perfect")
    for row in rows:
        curve = _binned(row, num_bins)
        kept = curve.count >= fewest
        look: dict[str, Any] = {
            "color": row.style.colour,
            "marker": row.style.marker,
            "markersize": 5,
        }
        axes.plot(curve.confidence[kept], curve.accuracy[kept], "-", label=row.label, **look)


def risk_coverage(predictions: Several, targets: Array, *, axes: "Axes | None" = None) -> "Figure":
    """The error that is left if only the predictions of least entropy are answered.

    Lower is better everywhere; the right end is the plain error.

    Args:
        predictions: A prediction of ``bbh.predict``, probabilities [B, C], or a dictionary of
            several, by the name of their model.
        targets: The true classes.
        axes: Where to draw; None makes a figure.
    """
    rows = judged(predictions, targets)
    with drawn_in(axes) as place:
        draw_risk_coverage(place, rows)
    return figure_of(place)


def draw_risk_coverage(axes: "Axes", rows: Sequence[Row], noun: str = "examples") -> None:
    """Draws rows that have ``entropy`` and ``correct``."""
    axes.set(xlabel=f"{noun} answered, surest first [%]", ylabel="error among them [%]")
    axes.set_xlim(0, 102)
    for row in rows:
        curve = metrics.risk_coverage_curve(
            torch.from_numpy(row.arrays["entropy"].astype(np.float32)),
            torch.from_numpy(~row.arrays["correct"].astype(bool)),
        )
        x, y = 100 * thin(curve.coverage.numpy()), 100 * thin(curve.risk.numpy())
        axes.plot(x, y, label=row.label, **marked(row.style, x))
    axes.set_ylim(bottom=0)


def entropy_curves(
    inside: Several,
    outside: Several,
    *,
    score: str = "predictive entropy [nats]",
    axes: "Axes | None" = None,
) -> "Figure":
    """Shares of examples whose entropy is below a value, for ordinary examples and for outliers.

    Ordinary examples (solid) should rise at once, outliers (dashed) late. Unlike histograms, many
    of these curves fit in one figure, and none depends on bins.

    Args:
        inside: Predictions for data like the training data: of ``bbh.predict``, probabilities
            [B, C], scores [B] of your own, or a dictionary of several, by the name of their model.
        outside: Predictions for outliers, in the same form.
        score: What the scores are, for the axis.
        axes: Where to draw; None makes a figure.
    """
    rows = inside_and_outside(inside, outside)
    with drawn_in(axes) as place:
        draw_entropy_curves(place, rows, inside="inside", outside="outside")
        place.set_xlabel(score)
    return figure_of(place)


def draw_entropy_curves(
    axes: "Axes",
    rows: Sequence[Row],
    noun: str = "examples",
    inside: str = "test images",
    outside: str = "outliers",
) -> None:
    """Draws rows that have ``entropy`` and ``outlier_entropy``."""
    axes.set(xlabel="predictive entropy [nats]", ylabel=f"share of {noun} below", ylim=(0, 1.01))
    levels = np.linspace(0, 1, MAX_POINTS)
    for row in rows:
        for name, dash in (("entropy", "-"), ("outlier_entropy", "--")):
            values = np.quantile(row.arrays[name].astype(float), levels)
            label = row.label if dash == "-" else None
            axes.plot(values, levels, dash, label=label, **marked(row.style, values))
    axes.set_xlim(left=0)
    axes.plot([], [], "-", color=GREY, label=inside)
    axes.plot([], [], "--", color=GREY, label=outside)


def entropy_histogram(
    inside: Classes,
    outside: Classes,
    *,
    score: str = "predictive entropy [nats]",
    threshold: float | None = None,
    axes: "Axes | None" = None,
) -> "Figure":
    """Histograms of the entropy of ordinary examples and of outliers, in the same bins.

    Args:
        inside: Predictions for data like the training data: of ``bbh.predict``, probabilities
            [B, C], or scores [B] of your own.
        outside: Predictions for outliers, in the same form.
        score: What the scores are, for the axis.
        threshold: Draws a line there, such as the threshold of
            ``bbh.decisions.OutlierThreshold``.
        axes: Where to draw; None makes a figure.
    """
    ordinary, others = doubt(inside), doubt(outside)
    low, high = min(ordinary.min(), others.min()), max(ordinary.max(), others.max())
    edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
    with drawn_in(axes) as place:
        place.set(xlabel=score, ylabel="share of examples [%]")
        shown = ((ordinary, BLUE, "inside", "//"), (others, ORANGE, "outside", ""))
        for values, colour, name, hatch in shown:
            shares = 100 * np.histogram(values, edges)[0] / len(values)
            filled: dict[str, Any] = {"facecolor": colour, "edgecolor": colour, "hatch": hatch}
            place.stairs(shares, edges, fill=True, alpha=0.35, linewidth=0, **filled)
            place.stairs(shares, edges, color=colour, label=name, linewidth=1.3)
        if threshold is not None:
            flagged = 100 * float((others > threshold).mean())
            label = f"threshold: {flagged:.0f} % of outside above"
            place.axvline(threshold, color=GREY, linestyle="--", label=label)
        place.set_ylim(bottom=0)
    return figure_of(place)


def _binned(row: Row, num_bins: int) -> metrics.ReliabilityCurve:
    confidence = torch.from_numpy(row.arrays["confidence"].astype(float))
    correct = torch.from_numpy(row.arrays["correct"].astype(bool))
    return binned(confidence, correct, num_bins)


def _with_error(row: Row, num_bins: int) -> str:
    curve = _binned(row, num_bins)
    gap = curve.count * (curve.accuracy - curve.confidence).abs()
    error = f"ECE {gap.nansum() / curve.count.sum():.3f}"
    return error if row.label is None else f"{row.label} ({error})"
