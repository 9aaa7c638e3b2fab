"""What all predictive distributions have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, repr=False)
class Predictive:
    """The predictive distribution p(y | x, D) ≈ 1/S Σ_s p(y | x, w_s).

    Attributes:
        mean: Mean of the distribution; for classes the averaged probabilities.
        num_samples: S, the number of weight draws in the average.
    """

    mean: Float[Tensor, " B *event"]
    num_samples: int

    # Names that users of other likelihoods may look for, and what to look at instead.
    not_here: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # to a type checker, an unknown name should remain an error

        def __getattr__(self, name: str) -> Any:
            why = type(self).not_here.get(name)
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}" + (f": {why}" if why else "")
            )

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
