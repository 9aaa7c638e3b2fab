"""Figures of attacks: their effect on each method, against the size of the attack."""

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from bbh.plots import canvas
from bbh.plots.canvas import Style
from bbh_studies.attack_columns import ATTACK_TITLES
from bbh_studies.report import drawing
from bbh_studies.report.collect import Group, Runs
from bbh_studies.report.figures import Picture

# Sizes that span more than this are drawn on a logarithmic axis.
_LOGARITHMIC_SPAN = 10.0
_LEVELS = 255
_KEY = "#777777"


class _Pair(NamedTuple):
    """The two curves of each method in a panel: endings of their names, and their titles."""

    solid: str
    dashed: str
    solid_words: str
    dashed_words: str
    caption: str


# The paper's figure first.
_PAIRS = (
    _Pair("accuracy", "entropy", "accuracy", "entropy / maximum", ""),
    _Pair(
        "auroc",
        "auroc_mi",
        "AUROC by entropy",
        "AUROC by mutual information",
        "How well attacked images are told from clean ones; 0.5 is chance.",
    ),
)


def panels(group: Group) -> list[list[Picture]]:
    """One panel per attack: accuracy and entropy; below, how well attacks are noticed."""
    with canvas.figure_style():
        rows = [[_panel(group, attack, pair) for attack in ATTACK_TITLES] for pair in _PAIRS]
    found = [[one for one in row if one is not None] for row in rows]
    return [row for row in found if row]


def _panel(group: Group, attack: str, pair: _Pair) -> Picture | None:
    solid, dashed = f"{attack}_{pair.solid}", f"{attack}_{pair.dashed}"
    chosen = drawing.styles(group.rows)
    drawn = [(runs, chosen[runs], _mean_curves(runs, "epsilon", solid, dashed)) for runs in chosen]
    drawn = [(runs, style, curves) for runs, style, curves in drawn if curves is not None]
    if not drawn:
        return None
    figure, axes = canvas.new_axes(title=ATTACK_TITLES[attack], ylim=(-0.02, 1.02))
    for runs, style, (sizes, first, second) in drawn:
        _line(axes, style, sizes, first, "-", runs.label)
        _line(axes, style, sizes, second, "--", None)
    _size_axis(axes, np.unique(np.concatenate([sizes for _, _, (sizes, *_) in drawn])))
    axes.plot([], [], "-", color=_KEY, label=pair.solid_words)
    axes.plot([], [], "--", color=_KEY, label=pair.dashed_words)
    canvas.legend_below(figure, axes)
    names = ", ".join(runs.label for runs, _, _ in drawn)
    return Picture(
        drawing.svg_uri(figure),
        pair.caption,
        f"{ATTACK_TITLES[attack]}: {pair.solid_words} (solid) and {pair.dashed_words} (dashed) "
        f"against the size of the attack for {names}.",
    )


def _line(
    axes: Axes, style: Style, x: np.ndarray, y: np.ndarray, dash: str, label: str | None
) -> None:
    axes.plot(
        x, y, dash, color=style.colour, marker=style.marker, markersize=4, lw=1.3, label=label
    )


def _size_axis(axes: Axes, sizes: np.ndarray) -> None:
    """Draws sizes that double at equal distances, and counts whole levels of a pixel as such."""
    above = sizes[sizes > 0]
    if not above.size or above.max() / above.min() <= _LOGARITHMIC_SPAN:
        axes.set_xlabel("size of the attack, ε")
        return
    axes.set_xscale("symlog", base=2, linthresh=above.min())
    levels = sizes * _LEVELS
    in_levels = np.allclose(levels, levels.round())
    axes.set_xticks(sizes, [f"{one:.3g}" for one in (levels if in_levels else sizes)])
    axes.set_xlabel("size of the attack, " + (f"{_LEVELS}·ε" if in_levels else "ε"))


def _mean_curves(runs: Runs, *names: str) -> tuple[np.ndarray, ...] | None:
    """Mean curves over a row's seeds; None if a record lacks one or a mean is not finite."""
    found = [record.curves for record in runs.records]
    if not all(name in curves for curves in found for name in names):
        return None
    if len({len(curves["epsilon"]) for curves in found}) > 1:
        return None  # curves over different sizes have no mean
    means = tuple(np.mean([curves[name] for curves in found], axis=0) for name in names)
    return means if all(np.isfinite(mean).all() for mean in means) else None
