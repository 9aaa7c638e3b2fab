"""What all predictive distributions have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

Kind = TypeVar("Kind", bound="Predictive")


@dataclass(frozen=True, repr=False)
class Predictive:
    """The predictive distribution p(y | x, D) ≈ 1/S Σ_s p(y | x, w_s).

    Attributes:
        mean: Mean of the distribution; for classes the averaged probabilities.
        num_samples: S, the number of weight draws in the average.
    """

    mean: Float[Tensor, " B *event"]
    num_samples: int

    # Attributes with the draws on the first axis and the examples on the second.
    per_draw: ClassVar[tuple[str, ...]] = ()
    # Names that users of other likelihoods may look for, and what to look at instead.
    not_here: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # to a type checker, an unknown name should remain an error

        def __getattr__(self, name: str) -> Any:
            why = type(self).not_here.get(name)
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}" + (f": {why}" if why else "")
            )

    @staticmethod
    def joined(parts: Sequence[Kind]) -> Kind:
        """The predictions for several batches, made with the same draws, as one.

        >>> first, second = (Predictive(torch.zeros(number, 1), 10) for number in (2, 3))
        >>> Predictive.joined([first, second]).mean.shape
        torch.Size([5, 1])
        """
        if len({part.num_samples for part in parts}) != 1:
            raise ValueError("join one or more predictions that have the same number of draws.")
        kind, values = type(parts[0]), dict[str, Any]()
        for field in fields(kind):
            each = [getattr(part, field.name) for part in parts]
            values[field.name] = each[0]
            if isinstance(each[0], Tensor):
                values[field.name] = torch.cat(each, 1 if field.name in kind.per_draw else 0)
        return kind(**values)

    def to(self: Kind, device: torch.device | str) -> Kind:
        """The same distribution on another device."""
        values: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        moved = {n: v.to(device) for n, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **moved)

    def __repr__(self) -> str:
        shape = list(self.mean.shape)
        return (
            f"{type(self).__name__}({shape[0]:,} examples, mean {shape}, {self.num_samples} weight "
            f"draws, {self._uncertainty()})"
        )

    def _uncertainty(self) -> str:
        """Mean uncertainty over the examples, in words."""
        return "uncertainty unknown"


def check_level(name: str, level: float) -> None:
    """Raises unless a probability lies strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"{name} strictly between 0 and 1, got {level}.")
