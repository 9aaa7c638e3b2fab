"""KL of a factorised Gaussian, exact wherever a closed form exists."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.distribution import Cost
from bbh.divergences.base import Comparison, Divergence, SummedMarginals
from bbh.priors import Normal
from bbh.samples import Shapes, unflatten


@dataclass(frozen=True)
class ClosedForm(Divergence):
    """KL(N(μ, σ²) ‖ p), summed over weights.

    For a Gaussian prior N(m, s²): log(s/σ) + (σ² + (μ − m)²)/(2s²) − ½ per weight. For any other
    prior with a density the entropy stays exact, ½ log(2πe σ²), and the prior term
    E_q[−log p(w)] is averaged over the weight samples.
    """

    needs_prior_density = True
    needs_marginals = True

    def estimate(self, comparison: Comparison) -> Cost:
        """The KL: exact for a Gaussian prior, else an unbiased estimate."""
        marginals, shapes, prior = comparison.marginals, comparison.shapes, comparison.prior
        if marginals is None:
            raise TypeError("ClosedForm needs the marginals of q.")
        centre, units = (part(shapes, marginals.loc) for part in (prior.centre, prior.units))
        normals = [prior.normal(name) for name in shapes]
        if isinstance(marginals, SummedMarginals) and centre is None and units is None:
            cost = _cost_of_sums(marginals.sums, shapes, normals)
            if cost is not None:
                return Cost(cost)
        loc, scale = marginals
        if centre is not None:
            # KL does not change if q and p are moved together.
            loc = loc - centre
        if units is not None:
            # Nor if both are measured in other units.
            loc, scale = loc / units, scale / units
        if len(set(normals)) == 1 and normals[0] is not None:
            return Cost(normal_kl(loc, scale, normals[0]))
        num_weights = len(scale)
        locs, scales = (unflatten(part.view(-1, num_weights), shapes) for part in (loc, scale))
        terms: list[Tensor] = []
        for name, normal in zip(shapes, normals, strict=True):
            loc, scale = locs[name], scales[name]
            if normal is not None:
                terms.append(normal_kl(loc, scale, normal))
            else:
                entropy = (scale.log() + 0.5 * math.log(2 * math.pi * math.e)).sum()
                samples = comparison.samples[name]
                prior_term = -prior.log_prob(name, samples).sum() / len(samples)
                terms.append(prior_term - entropy)
        return Cost(torch.stack(terms).sum())


def normal_kl(loc: Tensor, scale: Tensor, prior: Normal) -> Tensor:
    """KL(N(loc, scale²) ‖ prior), summed over all weights.

    If ``loc`` has several rows of means, the result is the average over the rows.

    >>> normal_kl(torch.tensor([3.0]), torch.tensor([0.1]), Normal(1.0))
    tensor(6.3076)
    """
    shift = loc - prior.loc if prior.loc else loc
    num_settings = loc.numel() // scale.numel()
    squares = scale.square().sum() + shift.square().sum() / num_settings
    constant = scale.numel() * (math.log(prior.scale) - 0.5)
    return squares * (0.5 / prior.scale**2) - scale.log().sum() + constant


def _cost_of_sums(
    sums: Float[Tensor, "T 2"], shapes: Shapes, normals: Sequence[Normal | None]
) -> Tensor | None:
    """The same KL from Σ (loc² + scale²) and Σ log scale; None unless all priors are N(0, s²)."""
    factors: list[tuple[float, float]] = []
    constant = 0.0
    for shape, normal in zip(shapes.values(), normals, strict=True):
        if normal is None or normal.loc != 0:
            return None
        factors.append((0.5 / normal.scale**2, -1.0))
        constant += shape.numel() * (math.log(normal.scale) - 0.5)
    return (sums * sums.new_tensor(factors)).sum() + constant
