"""One hypernetwork for the whole network: the paper's smallest generator."""

import math
from dataclasses import dataclass

from bbh.generators.base import Generator
from bbh.generators.hypernetwork import Head
from bbh.samples import Shapes, size


@dataclass(frozen=True)
class Single(Generator):
    """All weights in one row, cut into chunks; a one-hot code tells the hypernetwork which.

    Chunk borders ignore tensor borders, and there is one noise vector whatever the noise says.

    Args:
        chunk: Weights per call. None takes a divisor of the number of weights near four times
            its root (3,316 for LeNet, as in the paper), or that itself and a shorter last chunk.
    """

    chunk: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk={self.chunk}: a call makes at least one weight.")

    def heads(self, shapes: Shapes) -> list[Head]:
        """One head."""
        total = size(shapes)
        return [Head(tuple(shapes), total, min(self.chunk or default_chunk(total), total), 0)]


def default_chunk(total: int) -> int:
    """A chunk length that divides ``total``, if there is one of a reasonable size.

    >>> default_chunk(431_080), default_chunk(462_693)
    (3316, 2003)
    """
    wanted = 4 * math.sqrt(total)
    divisors = {
        d for k in range(1, math.isqrt(total) + 1) if total % k == 0 for d in (k, total // k)
    }
    nearest = min(divisors, key=lambda divisor: abs(math.log(divisor / wanted)))
    return nearest if 0.5 <= nearest / wanted <= 2 else min(total, round(wanted))
