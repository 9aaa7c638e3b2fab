"""What a weight distribution charges for being different from the prior."""

from typing import NamedTuple

from torch import Tensor


class Cost(NamedTuple):
    """The terms a distribution adds to the objective.

    Attributes:
        complexity: Scalar in nats; enters the objective as β/N · complexity.
        auxiliary: Loss of helper networks (a critic). It sends no gradient to the weights.
    """

    complexity: Tensor
    auxiliary: Tensor | float = 0.0
