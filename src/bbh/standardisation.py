"""Where regression targets lie and how far they spread, so that networks can learn them near zero.

Networks are initialised, and priors are chosen, for outputs of about the size of one. Targets in
the user's units (grams, dollars, degrees) may be anywhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

Numbers = float | tuple[float, ...]


@dataclass(frozen=True)
class Standardisation:
    """targets = loc + scale · (targets on the network's scale).

    Args:
        loc: Where the targets lie, usually their mean: one number for all outputs, or a tuple with
            one number for every output, which are on the last axis of the targets.
        scale: How far they spread, usually their standard deviation; in the form of ``loc``.
    """

    loc: Numbers = 0.0
    scale: Numbers = 1.0

    def __post_init__(self):
        locs, scales = _as_tuple(self.loc), _as_tuple(self.scale)
        if len(locs) != len(scales) or isinstance(self.loc, tuple) != isinstance(self.scale, tuple):
            raise ValueError(f"{self}: loc and scale must have one number for every output each.")
        if not all(isfinite(number) for number in (*locs, *scales)):
            raise ValueError(f"{self}: loc and scale must be finite.")
        if not all(number > 0 for number in scales):
            raise ValueError(f"{self}: the scale must be positive.")


def standardisation_of(parts: Iterable[tuple[Tensor, Tensor | None]]) -> Standardisation:
    """Mean and standard deviation of targets that come in parts.

    Targets [B] have one mean, and targets [B, …, k] have k, over all other axes. An output whose
    targets are all equal gets the scale 1, since nothing could be divided by its own.

    >>> standardisation_of([(torch.tensor([1.0, 3.0]), None), (torch.tensor([8.0]), None)])
    Standardisation(loc=4.0, scale=2.943920288775949)

    Args:
        parts: Targets, and a weight for every example or None. An example with weight 2 counts like
            two equal examples.
    """
    count = mean = squares = torch.zeros((), dtype=torch.float64)
    several = False
    for targets, weights in parts:
        several = targets.dim() > 1
        total, own_mean, own_squares = _moments(targets, weights)
        # Chan's formula joins two parts without the cancellation of E[y²] − E[y]².
        joint = (count + total).clamp(min=torch.finfo(torch.float64).tiny)
        away = own_mean - mean
        squares = squares + own_squares + away.square() * (count * total / joint)
        mean = mean + away * (total / joint)
        count = count + total
    if count == 0:
        raise ValueError("there are no targets to learn location and scale from.")
    std = (squares / count).sqrt()
    if not bool(mean.isfinite().all() and std.isfinite().all()):
        raise ValueError("the targets are not all finite: look for NaN or infinite ones.")
    # Below this, the spread of equal targets is rounding.
    scale = torch.where(std > 1e-12 * mean.abs(), std, 1.0)
    if several:
        return Standardisation(tuple(mean.tolist()), tuple(scale.tolist()))
    return Standardisation(float(mean), float(scale))


def _moments(targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Number, mean and sum of squared deviations for every entry of the last axis."""
    # In double precision, since a mean far from zero would swallow the digits of the spread.
    values = targets.detach().cpu().double()
    values = values.flatten(1, -2) if values.dim() > 2 else values.view(len(values), 1, -1)
    weights = torch.ones(len(values)) if weights is None else weights.detach().cpu()
    shares = weights.double().view(-1, 1, 1).expand(*values.shape[:2], 1)
    total = shares.sum()
    mean = (shares * values).sum((0, 1)) / total.clamp(min=torch.finfo(torch.float64).tiny)
    if targets.dim() < 2:
        mean = mean.squeeze()
    return total, mean, (shares * (values - mean).square()).sum((0, 1)).view_as(mean)


def _as_tuple(numbers: Numbers) -> tuple[float, ...]:
    return numbers if isinstance(numbers, tuple) else (numbers,)
