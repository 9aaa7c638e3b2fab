"""Figures of a study, made from its records only: nothing is trained here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from bbh.plots import canvas
from bbh.plots.canvas import Style
from bbh.plots.classification import draw_entropy_curves, draw_reliability, draw_risk_coverage
from bbh.plots.rows import Row
from bbh_studies.columns import METRICS
from bbh_studies.report import drawing
from bbh_studies.report.collect import Group, Runs
from bbh_studies.report.published import Published
from bbh_studies.report.tables import Table

Drawn = tuple[Runs, Style, dict[str, np.ndarray]]
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
    with canvas.figure_style():
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
    figure, axes = canvas.new_axes()
    draw_entropy_curves(axes, _rows(drawn), noun="images")
    canvas.legend_below(figure, axes)
    return Picture(
        drawing.svg_uri(figure),
        "Predictive entropy: share of images whose entropy is below a value. Test images (solid) "
        "should rise at once, outliers (dashed) late.",
        f"Distribution functions of the predictive entropy on test images and on outliers for "
        f"{_names([runs for runs, _, _ in drawn])}.",
    )


def _rows(drawn: Sequence[Drawn]) -> list[Row]:
    return [Row(runs.label, style, arrays) for runs, style, arrays in drawn]


def _reliability(group: Group) -> Picture | None:
    drawn = with_arrays(group, "confidence", "correct")
    if not drawn:
        return None
    figure, axes = canvas.new_axes()
    rows = [
        row._replace(label=_with_error(one[0]))
        for one, row in zip(drawn, _rows(drawn), strict=True)
    ]
    draw_reliability(axes, rows, fewest=_FEWEST)
    canvas.legend_below(figure, axes)
    return Picture(
        drawing.svg_uri(figure),
        "Reliability: accuracy among test images of like confidence, with the expected calibration "
        "error (ECE) in brackets. Above the dotted line a method is more often right than it says. "
        f"Bins with fewer than {_FEWEST} images are left out.",
        f"Reliability diagram of {_names([runs for runs, _, _ in drawn])}.",
    )


def _with_error(runs: Runs) -> str:
    error = runs.first.record.metrics.get("ece")
    return runs.label + ("" if error is None else f" ({METRICS['ece'].format(error)})")


def _risk_coverage(group: Group) -> Picture | None:
    drawn = with_arrays(group, "entropy", "correct")
    if not drawn:
        return None
    figure, axes = canvas.new_axes()
    draw_risk_coverage(axes, _rows(drawn), noun="images")
    canvas.legend_below(figure, axes)
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
    figure, axes = canvas.new_axes(xlabel="epoch", ylabel=label)
    for runs, x, y in found:
        axes.plot(x, y, label=runs.label, **canvas.marked(chosen[runs], x))
    values = np.concatenate([y for _, _, y in found])
    if values.min() > 0 and values.max() / values.min() > _LOGARITHMIC_SPAN:
        axes.set_yscale("log")
        # Powers of ten alone would leave a short axis with a single number.
        between = (1, 2, 5) if values.max() / values.min() < _MANY_POWERS else (1,)
        axes.yaxis.set_major_locator(LogLocator(subs=between))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel(f"{label}, logarithmic")
    canvas.legend_below(figure, axes)
    alt = f"{label} against epoch for {_names([runs for runs, _, _ in found])}."
    return Picture(drawing.svg_uri(figure), caption, alt)


def _history(runs: Runs, key: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = [
        (epoch.get("epoch", i + 1), epoch[key])
        for i, epoch in enumerate(runs.first.record.history)
        if isinstance(epoch.get(key), int | float)
    ]
    values = np.array(pairs, dtype=float).reshape(-1, 2)
    values = canvas.thin(values[np.isfinite(values).all(1)])
    return values[:, 0], values[:, 1]


def _trade_off(group: Group, table: Table, paper: Published) -> Picture | None:
    points = list(_points(table))
    if len(points) < 2:
        return None
    chosen = drawing.styles(group.rows)
    figure, axes = canvas.new_axes(
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
    canvas.legend_below(figure, axes)
    names = _names([runs for runs, *_ in points])
    return Picture(
        drawing.svg_uri(figure),
        "Error against entropy on outliers: down and to the left is better. Marks are means over "
        "seeds, lines their standard deviations."
        + (" Hollow marks: the paper's single runs." if hollow else ""),
        f"Test error against entropy AUC on outliers for {names}.",
    )


def _points(table: Table) -> Iterator[tuple[Runs, float, float, tuple[float, float]]]:
    errors, areas = table.column("error"), table.column("outlier_entropy_auc")
    for runs in (runs for runs in errors if runs in areas):
        x, y = errors[runs].statistic, areas[runs].statistic
        if np.isfinite([x.mean, y.mean]).all():
            yield runs, x.mean, y.mean, (x.std or 0.0, y.std or 0.0)
