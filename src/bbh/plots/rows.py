"""What is drawn: rows of arrays with a name and a style, from predictions of one or more models."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

from bbh import metrics
from bbh.decisions.predictions import Array, class_probabilities, labelled, scores, tensor
from bbh.plots.canvas import Style, style
from bbh.predictive import ClassPredictive

Classes = ClassPredictive | Array
Several = Classes | Mapping[str, Classes]


class Row(NamedTuple):
    """One line, or one set of lines, of a figure.

    Attributes:
        label: Its name in the legend; None has no entry.
        style: Its colour and marker.
        arrays: Per example: ``confidence``, ``correct``, ``entropy``, ``outlier_entropy``.
    """

    label: str | None
    style: Style
    arrays: Mapping[str, NDArray[Any]]


def judged(predictions: Several, targets: Array) -> list[Row]:
    """Rows with confidence, entropy, and whether predictions are correct."""
    rows: list[Row] = []
    for index, (name, given) in enumerate(by_name(predictions).items()):
        probs, classes = labelled(given, targets)
        confidence, predicted = probs.max(1)
        arrays = {
            "confidence": confidence.numpy(),
            "correct": (predicted == classes).numpy(),
            "entropy": metrics.entropy(probs).numpy(),
        }
        rows.append(Row(name, style(index), arrays))
    return rows


def inside_and_outside(inside: Several, outside: Several) -> list[Row]:
    """Rows with scores of ordinary examples and of outliers."""
    first, second = by_name(inside), by_name(outside)
    if first.keys() != second.keys():
        raise ValueError(
            f"inside has {_names(first)} and outside {_names(second)}: pass the same models."
        )
    return [
        Row(
            name,
            style(index),
            {"entropy": doubt(first[name]), "outlier_entropy": doubt(second[name])},
        )
        for index, name in enumerate(first)
    ]


def doubt(predictions: Classes) -> NDArray[Any]:
    """The entropy of each prediction; scores [B] are taken as they are."""
    if not isinstance(predictions, ClassPredictive) and tensor("scores", predictions).ndim == 1:
        return scores("scores", predictions).numpy()
    return metrics.entropy(class_probabilities(predictions)).numpy()


def by_name(predictions: Several) -> dict[str | None, Classes]:
    """Predictions of one model, without a name, or of several."""
    if not isinstance(predictions, Mapping):
        return {None: predictions}
    if not predictions:
        raise ValueError("there is nothing to draw: the dictionary of predictions is empty.")
    return {**predictions}


def _names(named: Mapping[str | None, Classes]) -> str:
    return ", ".join(str(name) for name in named)
