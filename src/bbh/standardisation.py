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


def standardisation_of(
    parts: Iterable[tuple[Tensor, Tensor | None]], what: str = "targets"
) -> Standardisation:
    """Mean and standard deviation of targets that come in parts.

    Targets [B] have one mean, and targets [B, …, k] have k, over all other axes. An output whose
    targets are all equal gets the scale 1, since nothing could be divided by its own.

    >>> standardisation_of([(torch.tensor([1.0, 3.0]), None), (torch.tensor([8.0]), None)])
    Standardisation(loc=4.0, scale=2.943920288775949)

    Args:
        parts: Targets, and a weight for every example or for every target, or None. An example with
            weight 2 counts like two equal examples. Targets of weight 0 may be NaN.
        what: What to call them in an error.
    """
    count = mean = squares = torch.zeros((), dtype=torch.float64)
    several = False
    for targets, weights in parts:
        several = targets.dim() > 1
        values, shares = columns(targets, weights)
        total = shares.sum(0)
        own_mean = (shares * values).sum(0) / total.clamp(min=_TINY)
        own_squares = (shares * (values - own_mean).square()).sum(0)
        # Chan's formula joins two parts without the cancellation of E[y²] − E[y]².
        joint = (count + total).clamp(min=_TINY)
        away = own_mean - mean
        squares = squares + own_squares + away.square() * (count * total / joint)
        mean = mean + away * (total / joint)
        count = count + total
    if not bool((count > 0).all()):
        raise ValueError(_NO_TARGETS)
    std = (squares / count).sqrt()
    if not bool(mean.isfinite().all() and std.isfinite().all()):
        raise ValueError(
            f"the {what} or their squares are not all finite: look for NaN, infinite and huge ones."
        )
    # Below this, the spread of equal targets is rounding.
    scale = torch.where(std > 1e-12 * mean.abs(), std, 1.0)
    return _as_standardisation(mean, scale, several)


def robust_standardisation_of(parts: Iterable[tuple[Tensor, Tensor | None]]) -> Standardisation:
    """Median of the targets, and 1.4826 times their median distance from it.

    For Gaussian targets these estimate mean and standard deviation, and even a third of outliers
    does not carry them away. Where more than half of all targets are equal, the distance is 0, and
    the scale is the standard deviation. All targets are held in memory.

    >>> robust_standardisation_of([(torch.tensor([1.0, 2.0, 3.0, 4.0, 1e9]), None)])
    Standardisation(loc=3.0, scale=1.4826)

    Args:
        parts: As for ``standardisation_of``.
    """
    known = list(parts)
    usual = standardisation_of(known)
    matrices = [columns(*one) for one in known]
    values = torch.cat([one for one, _ in matrices])
    shares = torch.cat([one for _, one in matrices])
    loc = _weighted_median(values, shares)
    scale = 1.4826 * _weighted_median((values - loc).abs(), shares)
    scale = torch.where(scale > 0, scale, scale.new_tensor(_as_tuple(usual.scale)))
    return _as_standardisation(loc, scale, isinstance(usual.loc, tuple))


def columns(targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Targets and their weights as two matrices [n, k] on the CPU, a column for every output.

    Targets [B] have one column, and targets [B, …, k] have k. Targets of weight 0 become 0. They
    are in double precision, since a mean far from zero would swallow the digits of the spread.
    """
    values = targets.detach().cpu().double()
    width = values.shape[-1] if values.dim() > 1 else 1
    shares = torch.ones(len(values)) if weights is None else weights.detach().cpu()
    shares = shares.double().view(*shares.shape, *[1] * (values.dim() - shares.dim()))
    shares = shares.expand(values.shape).reshape(-1, width)
    return values.reshape(-1, width).masked_fill(shares == 0, 0), shares


_TINY = torch.finfo(torch.float64).tiny
_NO_TARGETS = "there are no targets to learn location and scale from."


def _weighted_median(values: Tensor, shares: Tensor) -> Tensor:
    """The smallest value of every column that at least half of the weight does not exceed."""
    ordered, order = values.sort(0)
    reached = shares.gather(0, order).cumsum(0)
    first = (reached < reached[-1] / 2).sum(0, keepdim=True)
    return ordered.gather(0, first.clamp(max=len(values) - 1))[0]


def _as_standardisation(loc: Tensor, scale: Tensor, several: bool) -> Standardisation:
    if several:
        return Standardisation(tuple(loc.tolist()), tuple(scale.tolist()))
    return Standardisation(float(loc), float(scale))


def _as_tuple(numbers: Numbers) -> tuple[float, ...]:
    return numbers if isinstance(numbers, tuple) else (numbers,)
