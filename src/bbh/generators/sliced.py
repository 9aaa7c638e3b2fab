"""One hypernetwork for every tensor, called once per output unit."""

import math
from dataclasses import dataclass

from bbh.generators.base import Generator
from bbh.generators.hypernetwork import Head
from bbh.samples import Shapes


@dataclass(frozen=True)
class Sliced(Generator):
    """Each kernel is generated output unit by output unit, vectors in one call.

    PyTorch keeps the output dimension first, so a slice is one row of the kernel: all weights
    into one unit. (The authors' code cuts along the input axes instead, whatever the paper says.)
    """

    def heads(self, shapes: Shapes) -> list[Head]:
        """As many heads as tensors; kernels have one slice per output unit."""
        return [
            Head((name,), math.prod(shape), math.prod(shape[1 if len(shape) > 1 else 0 :]), group)
            for group, (name, shape) in enumerate(shapes.items())
        ]
