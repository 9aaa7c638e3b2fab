"""Draws stacked along the first axis of one tensor: taking some, separating and joining them."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from bbh.per_example import PerExampleWeight


def changed(value: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The draws with ``change`` applied, and to their rule for single examples if they have one."""
    return value.changed(change) if isinstance(value, PerExampleWeight) else change(value)


def taken(value: Tensor, draws: slice) -> Tensor:
    """Some of the draws, as a view."""
    if isinstance(value, PerExampleWeight):
        return value.draw(draws)
    base = value._base if value.requires_grad else None  # pyright: ignore[reportPrivateUsage]
    if base is None or not _repeats(value, base):
        return value[draws]
    # A tensor that is one setting repeated for all draws (a normalisation layer's, say) is expanded
    # anew to fewer draws instead of being sliced. The gradient of a slice would be a full stack,
    # zero except for the taken draws, and then a sum; a deep network has dozens of such tensors.
    number = len(range(*draws.indices(len(value))))
    return base.expand(number, *base.shape[1:])


def unstacked(value: Tensor) -> Sequence[Tensor]:
    """The draws one by one, as views."""
    if isinstance(value, PerExampleWeight):
        return [value.draw(index) for index in range(len(value))]
    if len(value) == 1:
        return (value.squeeze(0),)
    if value.requires_grad:
        return value.unbind()
    # These may be buffers that the network writes to: torch allows writing to views made by single
    # indexing, but not to the views that unbind() returns.
    return [value[index] for index in range(len(value))]


def in_turn(values: Mapping[int, Tensor], turns: Iterable[int]) -> Tensor:
    """Stacks draws from several tensors, of which each gives its next draw when it is its turn.

    Draws that have a rule for single examples become ordinary draws.

    >>> in_turn({0: torch.tensor([1, 2]), 7: torch.tensor([10])}, [0, 7, 0]).tolist()
    [1, 10, 2]
    """
    plain = {number: value.as_subclass(Tensor) for number, value in values.items()}
    if len(plain) == 1:
        return next(iter(plain.values()))
    rows = {number: iter(value.unbind()) for number, value in plain.items()}
    return torch.stack([next(rows[number]) for number in turns])


def _repeats(value: Tensor, base: Tensor) -> bool:
    """Whether ``value`` is the only row of ``base``, expanded to several rows."""
    return (
        base.dim() == value.dim() > 0
        and len(base) == 1
        and value.stride(0) == 0
        and value.shape[1:] == base.shape[1:]
        and value.stride()[1:] == base.stride()[1:]
        and value.storage_offset() == base.storage_offset()
    )
