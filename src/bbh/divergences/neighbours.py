"""Sums of log distances between nearest neighbours, the core of the sample-based divergences."""

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bbh.triton_available import triton_available

# Added to ν and to the ratio as in the authors' code; the floor already keeps both positive.
TINY = 1e-8
# Above this number of samples, sorting is faster than comparing all of them.
MANY = 16


def sum_log_distances(
    values: Float[Tensor, "S D"],
    reference: Float[Tensor, "M D"] | None,
    floor: float,
    neighbours: int = 1,
) -> Float[Tensor, ""]:
    """Σ log ν, or Σ log(ρ/ν) with a reference, over all draws and weights.

    Every column, which holds the draws of one weight, has distances of its own.

    Args:
        values: S draws of D weights, which receive a gradient.
        reference: M draws from the prior; ρ is the distance to the nearest of them.
        floor: Distances are √(distance² + floor²).
        neighbours: k; ν is the distance to the k-th nearest other value.
    """
    few = len(values) <= MANY and (reference is None or len(reference) <= MANY)
    on_gpu = values.is_cuda and values.dtype == torch.float32 and triton_available()
    if few and (on_gpu or not values.is_cuda):
        return cast(Tensor, _WithGradient.apply(values, reference, floor, neighbours))
    return sum_log_distances_plain(values, reference, floor, neighbours)


def sum_log_distances_plain(
    values: Tensor, reference: Tensor | None, floor: float, neighbours: int
) -> Tensor:
    """The same sum as ``sum_log_distances``, computed by sorting and differentiated by autograd."""
    if reference is None:
        return log_distances(values, floor, neighbours).sum()
    ordered = values.sort(dim=0).values
    within = _floored(neighbour_distance(ordered, neighbours), floor)
    across = _floored(ordered - nearest_of(reference, ordered), floor)
    return (across / (within + TINY) + TINY).log().sum()


def log_distances(
    values: Float[Tensor, "S D"], floor: float, neighbours: int
) -> Float[Tensor, "S D"]:
    """log ν of every draw and weight; the draws of each weight come in ascending order."""
    ordered = values.sort(dim=0).values
    return _floored(neighbour_distance(ordered, neighbours), floor).log()


class _WithGradient(torch.autograd.Function):
    """The sum of log distances, whose gradient is computed together with it in a single pass."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, reference: Tensor | None, floor: float, neighbours: int
    ) -> Tensor:
        if values.is_cuda:
            from bbh.divergences.neighbours_triton import log_distances
        else:
            from bbh.divergences.neighbours_cpu import log_distances

        total, gradient = log_distances(values.contiguous(), reference, floor, neighbours)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradients[0] * gradient, None, None, None


def _floored(distance: Tensor, floor: float) -> Tensor:
    """√(distance² + floor²): it stays positive, so that the slope of its logarithm is finite."""
    return (distance.square() + floor**2).sqrt()


def neighbour_distance(ordered: Float[Tensor, "S D"], neighbours: int = 1) -> Float[Tensor, "S D"]:
    """Distance of each value to its k-th nearest value in the same column.

    Columns are sorted in ascending order. A value and its k nearest are then a window of k + 1
    neighbouring entries, so the distance is the smallest, over all such windows, of the distance to
    the farther end. This avoids a table of all n² differences.

    >>> neighbour_distance(torch.tensor([[0.0], [1.0], [3.0]])).squeeze()
    tensor([1., 1., 2.])
    """
    num_samples = len(ordered)
    nearest: Tensor | None = None
    for before in range(neighbours + 1):
        after = neighbours - before
        inside = slice(before, num_samples - after)
        centre = ordered[inside]
        left = centre - ordered[: num_samples - neighbours]
        right = ordered[neighbours:] - centre
        reach = left if after == 0 else right if before == 0 else torch.maximum(left, right)
        padding = (0, 0, before, after)
        reach = nn.functional.pad(reach, padding, value=torch.inf)
        nearest = reach if nearest is None else torch.minimum(nearest, reach)
    assert nearest is not None
    return nearest


def nearest_of(
    reference: Float[Tensor, "M D"], values: Float[Tensor, "S D"]
) -> Float[Tensor, "S D"]:
    """For each value the nearest entry of the same column of ``reference``, without gradient."""
    values = values.detach()
    if len(reference) <= MANY:
        nearest = reference[0].expand_as(values)
        for candidate in reference[1:]:
            closer = (values - candidate).abs() < (values - nearest).abs()
            nearest = torch.where(closer, candidate, nearest)
        return nearest
    ordered = reference.T.contiguous().sort(dim=1).values
    queries = values.T.contiguous()
    above = torch.searchsorted(ordered, queries).clamp(max=ordered.shape[1] - 1)
    upper = ordered.gather(1, above)
    lower = ordered.gather(1, (above - 1).clamp(min=0))
    return torch.where((queries - lower).abs() < (upper - queries).abs(), lower, upper).T
