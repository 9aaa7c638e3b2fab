"""Images to show: the most doubtful ones, outliers that fool, rotations and mixtures."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, SupportsInt

import numpy as np
from matplotlib.axes import Axes

from bbh.plots import canvas
from bbh_studies.report import drawing
from bbh_studies.report.collect import Group, Runs
from bbh_studies.report.figures import Picture, with_arrays
from bbh_studies.studies import STUDIES

ClassName = Callable[[SupportsInt], str]
_SHOWN = 12
_STRIP = 7  # images under a curve: more would be too small on a phone
_NOTABLE = 0.15  # probability above which a class gets a line
_SERIES = {
    "rotation_three": ("A three, rotated", "angles", "angle [degrees]"),
    "rotation_one": ("A one, rotated", "angles", "angle [degrees]"),
    "rotation_six": ("A six, rotated", "angles", "angle [degrees]"),
    "mixing": ("An eight turning into a three", "factors", "mixing factor"),
}


@dataclass(frozen=True)
class Example:
    """One small image with its caption lines."""

    uri: str
    lines: tuple[str, ...]
    alt: str


@dataclass(frozen=True)
class Gallery:
    """Examples of one row."""

    title: str
    doubtful: tuple[Example, ...]
    fooled: tuple[Example, ...]


@dataclass(frozen=True)
class Series:
    """How class probabilities change along a series of images, one picture per row."""

    title: str
    pictures: tuple[Picture, ...]


def galleries(group: Group) -> list[Gallery]:
    """The most doubtful test images and the outliers a posterior is surest about, per row."""
    study = STUDIES.get(group.study)
    name: ClassName = str if study is None else study.problem.class_name
    found = [Gallery(runs.label, _doubtful(runs, name), _fooled(runs, name)) for runs in group.rows]
    return [one for one in found if one.doubtful or one.fooled]


def series(group: Group) -> list[Series]:
    """Rotations and mixtures, for rows whose records hold them."""
    found: list[Series] = []
    with canvas.figure_style():
        for key, (title, axis, label) in _SERIES.items():
            names = tuple(f"{key}_{part}" for part in ("images", axis, "probabilities"))
            pictures = tuple(
                _series(runs, title, label, *(arrays[name] for name in names))
                for runs, _, arrays in with_arrays(group, *names)
            )
            if pictures:
                found.append(Series(title, pictures))
    return found


def _doubtful(runs: Runs, name: ClassName) -> tuple[Example, ...]:
    names = ("images", "labels", "predictions", "entropy")
    return tuple(
        Example(
            drawing.png_uri(image),
            (f"{name(label)} as {name(predicted)}", f"{entropy:.2f} nats"),
            f"Test image of class {name(label)}, predicted {name(predicted)}, entropy "
            f"{entropy:.2f} nats",
        )
        for image, label, predicted, entropy in _columns(runs, "doubtful", names)
    )


def _fooled(runs: Runs, name: ClassName) -> tuple[Example, ...]:
    return tuple(
        Example(
            drawing.png_uri(image),
            (f"as {name(predicted)}", f"{entropy:.3f} nats"),
            f"Outlier predicted as {name(predicted)}, entropy {entropy:.3f} nats",
        )
        for image, predicted, entropy in _columns(
            runs, "fooled", ("images", "predictions", "entropy")
        )
    )


def _columns(runs: Runs, kind: str, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    arrays = runs.first.arrays
    if not all(f"{kind}_{name}" in arrays for name in names):
        return []
    return list(zip(*(arrays[f"{kind}_{name}"][:_SHOWN] for name in names), strict=True))


def _series(
    runs: Runs,
    title: str,
    label: str,
    images: np.ndarray,
    positions: np.ndarray,
    probabilities: np.ndarray,
) -> Picture:
    order = positions.argsort()
    images, positions = images[order], positions[order].astype(float)
    low, median, high = np.quantile(probabilities[:, order].astype(float), (0.1, 0.5, 0.9), axis=0)
    shown = [c for c in range(median.shape[1]) if high[:, c].max() >= _NOTABLE]
    chosen = np.linspace(0, len(images) - 1, min(_STRIP, len(images))).round().astype(int)
    width = 3.9
    tile = 0.78 * width / len(chosen)  # inches, of square images side by side under the axes
    height = 3.2 + tile
    figure, axes = canvas.new_axes(
        width, height, 0.65 + tile, title=runs.label, ylabel="class probability"
    )
    for index in shown:
        colour, dash = drawing.class_style(index)
        axes.plot(positions, median[:, index], color=colour, linestyle=dash)
        band: dict[str, Any] = {"color": colour, "alpha": 0.22, "linewidth": 0}
        axes.fill_between(positions, low[:, index], high[:, index], **band)
        peak = int(median[:, index].argmax())
        if median[peak, index] < _NOTABLE:
            continue  # labels on every faint band would hide those of the others
        name = axes.text(positions[peak], median[peak, index], str(index), color=colour)
        name.set(ha="center", va="center", fontweight="bold", fontsize=8)
        name.set_bbox({"facecolor": "white", "edgecolor": colour, "boxstyle": "circle,pad=0.15"})
    # Each image is centred under its position on the axis above.
    half = (positions[-1] - positions[0]) / max(2 * (len(chosen) - 1), 1) or 0.5
    limits = (positions[0] - half, positions[-1] + half)
    axes.set(ylim=(-0.05, 1.08), xlim=limits)
    tall = axes.get_position().height * height
    strip = axes.inset_axes((0, -(0.28 + tile) / tall, 1, tile / tall))
    _film(strip, images[chosen], np.linspace(positions[0], positions[-1], len(chosen)), half)
    strip.set(xticks=[], yticks=[], xlabel=label, xlim=limits, ylim=(0, 1))
    strip.spines[:].set_visible(False)
    return Picture(
        drawing.svg_uri(figure),
        "",
        f"{title}: class probabilities of {runs.label}, median and range from the 10th to the 90th "
        f"percentile of the draws. Notable classes: {', '.join(map(str, shown))}.",
    )


def _film(axes: Axes, images: np.ndarray, centres: np.ndarray, half: float) -> None:
    """Images side by side, with gaps: digits that fill their frames would run into each other."""
    reach = 0.9 * half
    common: dict[str, Any] = {"cmap": "gray", "aspect": "auto", "interpolation": "none"}
    for image, centre in zip(images, centres, strict=True):
        frame = (centre - reach, centre + reach, 0, 1)
        axes.imshow(image, extent=frame, vmin=images.min(), vmax=images.max(), **common)
