"""One hypernetwork for the whole network: the paper's smallest generator."""

import math
from dataclasses import dataclass

from bbh.generators.hypernetwork import Head
from bbh.generators.hypernetworks import HypernetworkGenerator
from bbh.samples import Shapes, size


@dataclass(frozen=True)
class Single(HypernetworkGenerator):
    """One hypernetwork makes all weights in chunks; a one-hot code tells it which chunk.

    The weights of all tensors are laid out in one row, and a chunk may extend over several tensors.
    There is only one noise vector, whether or not ``GaussianNoise`` is shared.

    Args:
        chunk: The number of weights in a chunk. None takes a divisor of the number of weights near
            four times its square root (3,316 for LeNet, as in the paper). If there is none, it
            takes four times the square root, and the last chunk is shorter.
    """

    chunk: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk={self.chunk}: a call makes at least one weight.")

    def heads(self, shapes: Shapes) -> list[Head]:
        """A single head for all tensors."""
        total = size(shapes)
        return [Head(tuple(shapes), total, min(self.chunk or default_chunk(total), total), 0)]


def default_chunk(total: int) -> int:
    """A chunk length that divides ``total``, if there is one within a factor of 2 of 4·√total.

    >>> default_chunk(431_080), default_chunk(462_693)
    (3316, 2003)
    """
    wanted = 4 * math.sqrt(total)
    divisors = {
        d for k in range(1, math.isqrt(total) + 1) if total % k == 0 for d in (k, total // k)
    }
    nearest = min(divisors, key=lambda divisor: abs(math.log(divisor / wanted)))
    return nearest if 0.5 <= nearest / wanted <= 2 else min(total, round(wanted))
