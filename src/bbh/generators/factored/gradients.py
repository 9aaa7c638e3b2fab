"""Gradients that are kept as factors, and what is computed from gradients of either kind."""

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bbh.generators.factored.skinny import columns_product, rows_product

_ATTRIBUTE = "gradient_factors"
# From so many entries on a matrix costs what its memory costs, and below what its operations do:
# a GPU moves eight million floats in the time of a few kernels.
_LARGE = {"cpu": 2**16, "cuda": 2**23}


class Factors(NamedTuple):
    """A gradient leftᵀ right of a matrix [rows, columns]."""

    left: Float[Tensor, "S rows"]
    right: Float[Tensor, "S columns"]


def is_large(matrix: Tensor) -> bool:
    """Whether reading it takes longer than a few more operations on it would.

    On other devices than those measured every matrix is: they are left alone.
    """
    return matrix.numel() >= _LARGE.get(matrix.device.type, 0)


def collect_factors(matrix: Tensor) -> None:
    """From now on backward passes through ``outer_linear`` leave factors instead of ``.grad``."""
    setattr(matrix, _ATTRIBUTE, [])


def stop_collecting(matrix: Tensor) -> None:
    """Backward passes write ``.grad`` again."""
    if hasattr(matrix, _ATTRIBUTE):
        delattr(matrix, _ATTRIBUTE)


def factors_of(matrix: Tensor) -> Factors | None:
    """What backward passes have left since ``clear_factors``; their sum is one longer pair."""
    found = cast("list[Factors]", getattr(matrix, _ATTRIBUTE, []))
    if not found:
        return None
    if len(found) == 1:
        return found[0]
    return Factors(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def clear_factors(matrix: Tensor) -> None:
    """Forgets them, as ``zero_grad`` does with gradients."""
    if hasattr(matrix, _ATTRIBUTE):
        getattr(matrix, _ATTRIBUTE).clear()


def outer_linear(
    features: Float[Tensor, "S columns"], matrix: Float[Tensor, "rows columns"]
) -> Float[Tensor, "S rows"]:
    """features @ matrixᵀ; the matrix's gradient stays in factors where they are collected."""
    collected = getattr(matrix, _ATTRIBUTE, None)
    # Mixed precision chooses types by itself, so the usual way is left to it.
    if collected is None or torch.is_autocast_enabled(matrix.device.type):
        return nn.functional.linear(features, matrix)
    return cast(Tensor, _OuterLinear.apply(features, matrix, collected))


class _OuterLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, matrix: Tensor, collected: list[Factors]) -> Tensor:
        ctx.save_for_backward(features, matrix)
        ctx.collected = collected
        return rows_product(features, matrix)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, None, None]:
        features, matrix = ctx.saved_tensors
        (gradient,) = gradients
        ctx.collected.append(Factors(gradient.detach(), features.detach()))
        return columns_product(gradient, matrix), None, None


def total_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Euclidean norm of all gradients together."""
    parameters = list(parameters)
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    found = [factors for p in parameters if (factors := factors_of(p)) is not None]
    if not found:
        return norm
    # ‖Σ_s a_s ⊗ b_s‖² = Σ_st (a_s·a_t)(b_s·b_t).
    squares = [((a @ a.T) * (b @ b.T)).sum().clamp(min=0) for a, b in found]
    return torch.stack([norm.square(), *squares]).sum().sqrt()


def clip_(parameters: Iterable[nn.Parameter], max_norm: float, norm: Tensor) -> None:
    """Scales all gradients so that their norm, which is ``norm`` now, is at most ``max_norm``."""
    parameters = list(parameters)
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        found = cast("list[Factors]", getattr(parameter, _ATTRIBUTE, []))
        found[:] = [Factors(left * scale, right) for left, right in found]
