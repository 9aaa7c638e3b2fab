"""Collects statistics of weight draws in one pass, without holding all draws in memory."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.inspect.moments import Moments
from bbh.memory import peak_bytes
from bbh.posterior import Posterior
from bbh.prediction.draws import evaluation_mode
from bbh.samples import Samples, Shapes, flatten, size

# The largest number of whole draws that are kept to compare them in pairs. With more, the effective
# dimension improves little, and the work grows with their square.
MOST_WHOLE = 256
# Moments are computed for at most this many draws at a time, since more do not fit in the cache of
# the processor. Drawing is faster in larger pieces, whose size in bytes is limited by the second
# number: a generator may be hundreds of times larger than a draw, and is read once per piece.
_MOST_AT_ONCE = 8
_PIECE_BYTES = 512 * 2**20


class Gathered(NamedTuple):
    """The statistics that are kept of S draws of D weights.

    Attributes:
        moments: Moments of every weight over all draws.
        chosen: All draws of K chosen weights.
        whole: The first H draws of all weights.
    """

    moments: Moments
    chosen: Float[Tensor, "S K"]
    whole: Float[Tensor, "H D"]


def gather(
    posterior: Posterior[Any],
    shapes: Shapes,
    tensor: str,
    most_chosen: int,
    num_samples: int,
    samples: Mapping[str, Tensor] | None,
    memory_limit: int,
) -> Gathered:
    """Draws weights in pieces and keeps the statistics in ``Gathered``.

    Args:
        posterior: The posterior to draw from, in evaluation mode.
        shapes: The tensors to include, in the order of the result's columns.
        tensor: The tensor from which weights are chosen.
        most_chosen: The largest number of chosen weights; they are the first of the tensor.
        num_samples: The number S of draws.
        samples: Draws to use instead of new ones.
        memory_limit: The largest number of bytes for pieces and whole draws.
    """
    num_weights = size(shapes)
    # Half of the memory is for whole draws, which take four bytes per weight twice: in pieces, and
    # joined at the end. A quarter is for pieces, and a quarter for moments, which need three copies
    # in double precision.
    most_whole = max(2, min(MOST_WHOLE, memory_limit // 2 // (8 * num_weights)))
    at_once = max(1, min(_MOST_AT_ONCE, memory_limit // 4 // (24 * num_weights)))
    piece_limit = min(memory_limit // 4, _PIECE_BYTES)
    moments: Moments | None = None
    chosen: list[Tensor] = []
    whole: list[Tensor] = []
    with evaluation_mode(posterior), torch.no_grad():
        for piece in _pieces(posterior, num_weights, num_samples, samples, piece_limit):
            flat = flatten(piece, shapes)
            for some in flat.split(at_once):
                if moments is None:
                    moments = Moments(some)
                else:
                    moments.add(some)
            chosen.append(flatten(piece, {tensor: shapes[tensor]})[:, :most_chosen].clone())
            missing = most_whole - sum(map(len, whole))
            whole += [flat[:missing].clone()] if missing > 0 else []
    if moments is None or moments.number < 2:
        raise ValueError("there is one weight setting only: how it spreads takes at least two.")
    _check_finite(moments, shapes)
    return Gathered(moments, torch.cat(chosen), torch.cat(whole))


def _pieces(
    posterior: Posterior[Any],
    num_weights: int,
    num_samples: int,
    samples: Mapping[str, Tensor] | None,
    limit: int,
) -> Iterator[Samples]:
    """Yields all draws, a few at a time."""
    per_draw = 4 * num_weights  # for the flattened copy of a draw
    if samples is None and posterior.weights.num_distinct is not None:
        # The members of an ensemble are in memory already, and drawing them in several parts could
        # repeat some members.
        samples = posterior.weights.sample(posterior.weights.num_useful(num_samples))
    if samples is not None:
        at_once = max(1, limit // per_draw)
        given = Samples.of(samples)
        for first in range(0, given.num_samples, at_once):
            yield given.take(slice(first, first + at_once))
        return
    # Weights alone are drawn: batch-norm statistics of the draws are of no use here.
    per_draw += peak_bytes(lambda: posterior.weights.sample(1))
    at_once = posterior.weights.even(limit // per_draw)
    for first in range(0, num_samples, at_once):
        yield posterior.weights.sample(min(at_once, num_samples - first))


def _check_finite(moments: Moments, shapes: Shapes) -> None:
    finite = moments.mean.isfinite()
    if finite.all():
        return
    parts = finite.split([shape.numel() for shape in shapes.values()])
    bad = [name for name, part in zip(shapes, parts, strict=True) if not part.all()]
    raise ValueError(f"draws of {', '.join(bad)} are not finite: find out where training diverged.")
