"""Pictures of the images that a posterior is surest of, and of those it doubts most."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bbh import checks, metrics
from bbh.decisions.predictions import Array, class_probabilities, labelled, real
from bbh.plots.canvas import PLAIN, figure_style
from bbh.predictive import ClassPredictive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_IN_A_ROW = 6


def examples(
    images: Array,
    predictions: ClassPredictive | Array,
    targets: Array | None = None,
    *,
    number: int = 6,
    class_names: Sequence[str] | None = None,
) -> "Figure":
    """The images of least and of most entropy, with predicted classes and entropies.

    Args:
        images: [B, H, W], [B, 1, H, W] or [B, 3, H, W], of any range: each is drawn from its
            smallest to its largest value.
        predictions: A prediction of ``bbh.predict`` for these images, or probabilities [B, C].
        targets: True classes. Where they are known, a wrong prediction reads "true as predicted".
        number: How many images of either kind.
        class_names: A name for each class instead of its number.
    """
    checks.whole("number", number, 1, "show at least one image")
    pictures = _pictures(images)
    probs = class_probabilities(predictions)
    classes = None if targets is None else labelled(predictions, targets)[1].tolist()
    if len(pictures) != len(probs):
        raise ValueError(f"images: {len(pictures)} of them, and predictions for {len(probs)}.")
    if class_names is not None and len(class_names) != probs.shape[1]:
        raise ValueError(
            f"class_names: {len(class_names)} names, and predictions of {probs.shape[1]} classes."
        )
    names: Sequence[str] = class_names or [str(index) for index in range(probs.shape[1])]
    entropy, predicted = metrics.entropy(probs).numpy(), probs.argmax(1).tolist()
    captions = [
        _caption(names[int(predicted[i])], None if classes is None else names[int(classes[i])])
        for i in range(len(entropy))
    ]
    order = entropy.argsort(kind="stable")
    with figure_style(PLAIN):
        from bbh.plots.shown import ShownFigure

        columns = min(number, len(order), _MOST_IN_A_ROW)
        rows = -(-min(number, len(order)) // columns)
        figure = ShownFigure(figsize=(0.9 * columns + 0.2, 2.6 * rows + 0.7), layout="constrained")
        parts: Any = figure.subfigures(2, 1)
        kinds = (("surest", order[:number]), ("most doubtful", order[::-1][:number]))
        for part, (title, chosen) in zip(parts, kinds, strict=True):
            part.suptitle(f"{title} [nats]", fontsize=9.5)
            places = list(part.subplots(rows, columns, squeeze=False).flat)
            for axes in places:
                axes.set_axis_off()
            for axes, i in zip(places, chosen, strict=False):
                _show(axes, pictures[i], f"{captions[i]}\n{entropy[i]:.2g}")
    return figure


def _caption(predicted: str, true: str | None) -> str:
    return predicted if true in (None, predicted) else f"{true} as {predicted}"


def _show(axes: "Axes", picture: NDArray[Any], caption: str) -> None:
    axes.imshow(picture, cmap="gray", interpolation="none")
    axes.set_title(caption, fontsize=8, pad=2)


def _pictures(images: Array) -> NDArray[Any]:
    """Images [B, H, W] or [B, H, W, 3] from 0 to 1."""
    known = real("images", images).numpy()
    if known.ndim == 4 and known.shape[1] in (1, 3):
        known = np.moveaxis(known, 1, -1)
        known = known[..., 0] if known.shape[-1] == 1 else known
    elif known.ndim != 3:
        raise ValueError(
            f"images: shape {list(known.shape)}; pass [B, H, W], [B, 1, H, W] or [B, 3, H, W], "
            "e.g. images.view(-1, 28, 28)."
        )
    axes = tuple(range(1, known.ndim))
    low, high = known.min(axes, keepdims=True), known.max(axes, keepdims=True)
    return (known - low) / np.where(high > low, high - low, 1)
