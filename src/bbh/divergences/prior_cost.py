"""The prior's share of the KL where weights are m + s·h: E[−log p(m + s·h)]."""

import math

import torch
from torch import Tensor

from bbh.divergences.base import Comparison
from bbh.priors import Normal
from bbh.samples import Line, Shapes, unflatten


def lines_prior_cost(comparison: Comparison) -> Tensor:
    """E[−log p(w)], summed over all weights.

    Under a Gaussian prior it depends on the mean and the mean square of h alone. Under others it is
    averaged over the draws of the weights.
    """
    lines, prior, shapes = comparison.lines, comparison.prior, comparison.shapes
    assert lines is not None
    like = next(iter(lines.values())).mean
    centres = _by_name(prior.centre(shapes, like), shapes)
    units = _by_name(prior.units(shapes, like), shapes)
    terms: list[Tensor] = []
    for name, line in lines.items():
        if (normal := prior.normal(name)) is None:
            draws = comparison.samples[name]
            terms.append(-prior.log_prob(name, draws).sum() / len(draws))
        else:
            terms.append(_gaussian_cost(line, normal, centres.get(name), units.get(name)))
    return torch.stack(terms).sum()


def _by_name(row: Tensor | None, shapes: Shapes) -> dict[str, Tensor]:
    if row is None:
        return {}
    return {name: value[0] for name, value in unflatten(row.unsqueeze(0), shapes).items()}


def _gaussian_cost(
    line: Line, prior: Normal, centre: Tensor | None, units: Tensor | None
) -> Tensor:
    mean, direction, moved = line
    if centre is not None:
        mean = mean - centre
    if units is not None:
        # The density in other units: −log p(w) = −log p(w/u) + log u.
        scaled = Line(mean / units, direction / units, moved)
        return _gaussian_cost(scaled, prior, None, None) + units.log().sum()
    if prior.loc:
        mean = mean - prior.loc
    # E[(m + s·h)²] = m² + s·(2m·E[h] + s·E[h²])
    cross = torch.addcmul(2 * mean * moved.mean(0), direction, moved.square().mean(0))
    squares = torch.addcmul(mean.square(), direction, cross).sum()
    constant = mean.numel() * math.log(prior.scale * math.sqrt(2 * math.pi))
    return squares * (0.5 / prior.scale**2) + constant
