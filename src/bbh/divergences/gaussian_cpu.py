"""What draws cost beside a Gaussian prior, on a CPU: distances and prior in one compiled loop.

The general way lays all weights side by side, and goes over them once for the distances and several
times for the prior, forth and back. Here every tensor is read once and its gradient written once.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from bbh.divergences.base import Comparison
from bbh.divergences.neighbours import MANY
from bbh.divergences.neighbours_rows import terms
from bbh.divergences.one_loop import OneLoop, one_loop
from bbh.divergences.recorder import Rows
from bbh.priors import Normal


def cost_by_tensors(comparison: Comparison, floor: float, neighbours: int) -> Tensor | None:
    """−Σ (log p + log ν) over all draws and weights; None if there is no loop for it.

    There is one for a few draws in single precision on a CPU, a Gaussian prior around zero, and a
    C++ compiler.
    """
    prior, shapes = comparison.prior, comparison.shapes
    values = [comparison.samples[name] for name in shapes]
    normals = [prior.normal(name) for name in shapes]
    centred = prior.centre(shapes, values[0]) is None and prior.units(shapes, values[0]) is None
    suitable = centred and comparison.num_samples <= MANY and all(map(_on_cpu, values))
    if not suitable or not all(one is not None and one.loc == 0 for one in normals):
        return None
    loop = _compiled(comparison.num_samples, floor, neighbours)
    if loop is None:
        return None
    scales = [cast(Normal, one).scale for one in normals]
    total = cast(Tensor, _Cost.apply([one**-2 for one in scales], loop, *values))
    constants = [math.log(one * math.sqrt(2 * math.pi)) for one in scales]
    numbers = [value.numel() for value in values]
    return total + math.fsum(map(operator.mul, numbers, constants))


def _on_cpu(value: Tensor) -> bool:
    return value.device.type == "cpu" and value.dtype == torch.float32


class _Cost(torch.autograd.Function):
    """½ Σ precision·w² − Σ log ν, whose gradient is computed together with it in a single pass."""

    @staticmethod
    def forward(ctx: Any, precisions: list[float], loop: OneLoop, *values: Tensor) -> Tensor:
        ctx.save_for_backward(*values)
        ctx.again = functools.partial(_evaluated, precisions=precisions, loop=loop)
        total, ctx.gradients = ctx.again(values)
        return total

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        # They are changed in place, which saves a pass over new memory; whoever comes a second time
        # (``retain_graph``) gets new ones.
        own = ctx.again(ctx.saved_tensors)[1] if ctx.gradients is None else ctx.gradients
        ctx.gradients = None
        return None, None, *(one.mul_(gradients[0]) for one in own)


def _evaluated(
    values: Sequence[Tensor], precisions: Sequence[float], loop: OneLoop
) -> tuple[Float[Tensor, ""], list[Tensor]]:
    """The sum of the costs of all tensors, and the gradients."""
    totals: list[Tensor] = []
    gradients: list[Tensor] = []
    for value, precision in zip(values, precisions, strict=True):
        rows = value.reshape(len(value), -1)
        total, gradient = loop(rows, rows.new_full((1, rows.shape[1]), precision))
        totals.append(total)
        gradients.append(gradient.view(value.shape))
    return torch.stack(totals).sum(), gradients


@functools.cache
def _compiled(num_samples: int, floor: float, neighbours: int) -> OneLoop | None:
    """The loop for this many draws; None if it cannot be compiled."""
    computation = functools.partial(costs, floor=floor, neighbours=neighbours)
    return one_loop(computation, (num_samples, 1))


def costs(rows: Rows, precisions: Rows, *, floor: float, neighbours: int) -> tuple[Tensor, Rows]:
    """For every column ½ Σ precision·w² − Σ log ν, and its gradient in each row.

    Args:
        rows: The draws, one row each, with a column for every weight.
        precisions: One row: 1/scale² of every weight's prior.
        floor: Distances are √(distance² + floor²).
        neighbours: k; ν is the distance to the k-th nearest other draw.
    """
    (precision,) = precisions
    log_distances, slopes = terms(rows, floor=floor, neighbours=neighbours)
    pulls = [precision * row for row in rows]
    squares = functools.reduce(
        torch.add, [row * pull for row, pull in zip(rows, pulls, strict=True)]
    )
    gradients = [pull - slope for pull, slope in zip(pulls, slopes, strict=True)]
    return 0.5 * squares - log_distances, gradients
