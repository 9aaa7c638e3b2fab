"""Gradients that are kept as factors, and norm and clipping for dense and factored gradients."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bbh.generators.factored.skinny import (
    columns_product,
    columns_product_and_totals,
    gram,
    rows_product,
)

_ATTRIBUTE = "gradient_factors"
# The number of entries from which a matrix counts as large on each device. The time for a large
# matrix is that of reading its memory, for a small one that of launching operations: a GPU moves
# eight million floats in the time of a few kernels.
_LARGE = {"cpu": 2**16, "cuda": 2**23}
# Size of the blocks of rows in which a dense gradient is formed; they fit in a cache.
_BLOCK_BYTES = 2**20


class Factors(NamedTuple):
    """Two factors of the gradient leftᵀ right of a matrix [rows, columns]."""

    left: Float[Tensor, "S rows"]
    right: Float[Tensor, "S columns"]


def is_large(matrix: Tensor) -> bool:
    """Whether reading the matrix takes longer than launching a few more operations.

    On devices where this was not measured every matrix counts as large, so that output layers are
    not stacked there.
    """
    return matrix.numel() >= _LARGE.get(matrix.device.type, 0)


def collect_factors(matrix: Tensor) -> None:
    """Makes backward passes through ``outer_linear`` store factors instead of ``.grad``."""
    setattr(matrix, _ATTRIBUTE, [])


def collects_factors(matrix: Tensor) -> bool:
    """Whether backward passes through ``outer_linear`` store factors of this matrix's gradient."""
    return hasattr(matrix, _ATTRIBUTE)


def stop_collecting(matrix: Tensor) -> None:
    """Makes backward passes write ``.grad`` again."""
    if hasattr(matrix, _ATTRIBUTE):
        delattr(matrix, _ATTRIBUTE)


def factors_of(matrix: Tensor) -> Factors | None:
    """The factors that backward passes have stored since ``clear_factors``.

    The sum of several gradients is a single pair of factors with more rows.
    """
    found = cast("list[Factors]", getattr(matrix, _ATTRIBUTE, []))
    if not found:
        return None
    if len(found) == 1:
        return found[0]
    return Factors(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def dense_blocks(
    left: Float[Tensor, "S rows"], right: Float[Tensor, "S columns"]
) -> Iterator[tuple[slice, Float[Tensor, "some columns"]]]:
    """Forms the gradient leftᵀ right in blocks; gives each with the rows that it belongs to."""
    rows, columns = left.shape[1], right.shape[1]
    block = max(1, _BLOCK_BYTES // (columns * right.element_size()))
    for first in range(0, rows, block):
        part = slice(first, first + block)
        yield part, left[:, part].T @ right


def clear_factors(matrix: Tensor) -> None:
    """Clears the stored factors, as ``zero_grad`` does with gradients."""
    if hasattr(matrix, _ATTRIBUTE):
        getattr(matrix, _ATTRIBUTE).clear()


def outer_linear(
    features: Float[Tensor, "S columns"],
    matrix: Float[Tensor, "rows columns"],
    bias: Float[Tensor, " rows"] | None = None,
) -> Float[Tensor, "S rows"]:
    """features @ matrixᵀ + bias; if factors are collected, the matrix's gradient stays in factors.

    The bias is added after the product, because mixed precision rounds the product's arguments.
    """
    collected = getattr(matrix, _ATTRIBUTE, None)
    # Mixed precision chooses types of operations itself, so it gets the ordinary one.
    if collected is None or torch.is_autocast_enabled(matrix.device.type):
        product = nn.functional.linear(features, matrix)
        return product if bias is None else product + bias
    return cast(Tensor, _OuterLinear.apply(features, matrix, bias, collected))


class _OuterLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        matrix: Tensor,
        bias: Tensor | None,
        collected: list[Factors],
    ) -> Tensor:
        ctx.save_for_backward(features, matrix)
        ctx.collected = collected
        return rows_product(features, matrix, bias)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, None, Tensor | None, None]:
        features, matrix = ctx.saved_tensors
        (gradient,) = gradients
        ctx.collected.append(Factors(gradient.detach(), features.detach()))
        if not ctx.needs_input_grad[2]:
            return columns_product(gradient, matrix), None, None, None
        by_features, by_bias = columns_product_and_totals(gradient, matrix)
        return by_features, None, by_bias, None


def total_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Euclidean norm of all gradients together, dense and factored."""
    parameters = list(parameters)
    norm = _dense_norm([p.grad for p in parameters if p.grad is not None])
    found = [(p, factors) for p in parameters if (factors := factors_of(p)) is not None]
    if not found:
        return norm
    # ‖Σ_s a_s ⊗ b_s‖² = Σ_st (a_s·a_t)(b_s·b_t).
    squares = [(gram(a, p) * (b @ b.T)).sum().clamp(min=0) for p, (a, b) in found]
    return torch.stack([norm.square(), *squares]).sum().sqrt()


def _dense_norm(gradients: list[Tensor]) -> Tensor:
    plain = all(type(one) is Tensor and one.layout is torch.strided for one in gradients)
    if not plain or {(one.device.type, one.dtype) for one in gradients} != {("cpu", torch.float32)}:
        return nn.utils.get_total_norm(gradients)
    # The same operations, without sorting tensors by device and type first.
    norms = torch._foreach_norm(gradients)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    return torch.linalg.vector_norm(torch.stack(norms))


def clip_(parameters: Iterable[nn.Parameter], max_norm: float, norm: Tensor) -> None:
    """Scales all gradients, whose total norm is ``norm``, so that it is at most ``max_norm``."""
    parameters = list(parameters)
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        found = cast("list[Factors]", getattr(parameter, _ATTRIBUTE, []))
        found[:] = [Factors(left * scale, right) for left, right in found]
