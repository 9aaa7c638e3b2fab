"""One hypernetwork for every tensor, which makes one output unit at a time."""

import math
from dataclasses import dataclass

from bbh.generators.hypernetwork import Head
from bbh.generators.hypernetworks import HypernetworkGenerator
from bbh.samples import Shapes


@dataclass(frozen=True)
class Sliced(HypernetworkGenerator):
    """Each kernel is generated one output unit at a time; a vector (a bias) is one slice.

    PyTorch keeps the output dimension first, so a slice is one row of the kernel: all weights
    into one unit. (The authors' code cuts along the input axes instead, contrary to the paper.)
    """

    def heads(self, shapes: Shapes) -> list[Head]:
        """One head for each tensor; kernels have one slice per output unit."""
        return [
            Head((name,), math.prod(shape), math.prod(shape[1 if len(shape) > 1 else 0 :]), group)
            for group, (name, shape) in enumerate(shapes.items())
        ]
