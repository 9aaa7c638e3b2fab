"""The KL of weights m + s·h, from draws of h, of which every tensor has one.

For every weight H(m + s·h) = log |s| + H(h), and under a Gaussian prior E[−log p(w)] depends on the
mean and the mean square of h alone. So each m and s is read once, and no draw of the weights is
needed.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bbh.divergences.base import Comparison
from bbh.lines import Lines
from bbh.samples import Params, Shapes, unflatten
from bbh.triton_available import triton_available

# Weights per block, on a CPU: what is computed of them stays in the cache.
_BLOCK = 2**16


def cost_without_entropy_of_h(comparison: Comparison, lines: Lines, floor: float) -> Tensor:
    """E[−log p(w)] − Σ log |s|: the KL but for the entropies of h.

    Args:
        comparison: The prior, and draws of the weights for tensors with a prior that is not
            Gaussian.
        lines: The weights.
        floor: |s| is √(s² + floor²), so that the slope of its logarithm is finite.
    """
    prior, shapes = comparison.prior, comparison.shapes
    centres = _by_name(prior.centre(shapes, lines.moved), shapes)
    units = _by_name(prior.units(shapes, lines.moved), shapes)
    means: list[Tensor] = []
    directions: list[Tensor] = []
    precisions: list[float] = []
    constant = 0.0
    others: list[Tensor] = []
    for name, mean in lines.means.items():
        direction, normal = lines.directions[name], prior.normal(name)
        if normal is None:
            draws = comparison.samples[name]
            others.append(-prior.log_prob(name, draws).sum() / len(draws))
            precisions.append(0.0)
        else:
            mean = mean - centres[name] if name in centres else mean
            if name in units:
                # In other units u both terms change by log u, so their difference stays the same.
                mean, direction = mean / units[name], direction / units[name]
            mean = mean - normal.loc if normal.loc else mean
            precisions.append(normal.scale**-2)
            constant += mean.numel() * math.log(normal.scale * math.sqrt(2 * math.pi))
        means.append(mean)
        directions.append(direction)
    moments = torch.stack([lines.moved.mean(0), lines.moved.square().mean(0)])
    total = _WithGradient.apply(moments, floor, precisions, *means, *directions)
    return torch.stack([cast(Tensor, total) + constant, *others]).sum()


def _by_name(row: Tensor | None, shapes: Shapes) -> Params:
    if row is None:
        return {}
    return {name: value[0] for name, value in unflatten(row.unsqueeze(0), shapes).items()}


class _WithGradient(torch.autograd.Function):
    """½/σ² E[(m + s·h)²] − log |s|, summed over all weights; its gradient is computed with it.

    Its arguments are E[h] and E[h²] for each tensor, the floor of |s|, 1/σ² for each tensor, and
    all m and all s.
    """

    @staticmethod
    def forward(
        ctx: Any, moments: Tensor, floor: float, precisions: Sequence[float], *tensors: Tensor
    ) -> Tensor:
        number = len(precisions)
        slopes = [torch.empty_like(one, memory_format=torch.contiguous_format) for one in tensors]
        flat = [one.flatten() for one in tensors]
        on_gpu = moments.is_cuda and moments.dtype == torch.float32 and triton_available()
        if on_gpu:
            from bbh.divergences.lines_triton import sums_and_slopes
        else:
            sums_and_slopes = _sums_and_slopes
        sums = torch.stack(
            [
                sums_and_slopes(flat[i], flat[number + i], *out, moments[:, i], precision, floor)
                for i, precision in enumerate(precisions)
                for out in [(slopes[i].view(-1), slopes[number + i].view(-1))]
            ],
            dim=1,
        )
        means, products, directions, logs = sums
        ctx.save_for_backward(torch.stack([products, directions / 2]), *slopes)
        # E[(m + s·h)²] = m² + 2·m·s·E[h] + s²·E[h²]
        squares = means + 2 * moments[0] * products + moments[1] * directions
        return (squares / 2 - logs).sum()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        moment_slopes, *slopes = (slope * gradients[0] for slope in ctx.saved_tensors)
        return moment_slopes, None, None, *slopes


def _sums_and_slopes(
    mean: Tensor,
    direction: Tensor,
    mean_slope: Tensor,
    direction_slope: Tensor,
    moments: Tensor,
    precision: float,
    floor: float,
) -> Tensor:
    """Σ m²/σ², Σ m·s/σ², Σ s²/σ² and Σ log |s| of one tensor; fills ∂/∂m and ∂/∂s."""
    first, second = precision * moments
    sums = mean.new_zeros(4)
    step = len(mean) if mean.is_cuda else _BLOCK
    for start in range(0, len(mean), step):
        part = slice(start, start + step)
        m, s = mean[part], direction[part]
        length = s * s
        torch.mul(m, precision, out=mean_slope[part]).addcmul_(s, first)
        slope = torch.mul(m, first, out=direction_slope[part]).addcmul_(s, second)
        squares = torch.stack([(m * m).sum(), (m * s).sum(), length.sum()])
        length.add_(floor**2)
        slope.addcdiv_(s, length, value=-1)
        sums[:3] += precision * squares
        sums[3] += length.log_().sum() / 2
    return sums
