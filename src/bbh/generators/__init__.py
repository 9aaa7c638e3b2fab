"""Generators turn noise into weights. Three kinds divide the weights among hypernetworks."""

from bbh.generators.base import Generator
from bbh.generators.hypernetwork import Head, Hypernetwork
from bbh.generators.hypernetworks import HypernetworkGenerator, Hypernetworks
from bbh.generators.initialization import FromNetwork, Glorot, Initialization
from bbh.generators.layerwise import LayerWise
from bbh.generators.low_rank import LowRank
from bbh.generators.module import GeneratorModule
from bbh.generators.single import Single
from bbh.generators.sliced import Sliced
from bbh.samples import Shapes, size

__all__ = [
    "FromNetwork",
    "Generator",
    "GeneratorModule",
    "Glorot",
    "Head",
    "Hypernetwork",
    "HypernetworkGenerator",
    "Hypernetworks",
    "Initialization",
    "LayerWise",
    "LowRank",
    "Single",
    "Sliced",
    "default",
]

# The largest number of weights for a layer-wise generator by default. At 64 features per weight,
# the generator of 2 million weights takes half a gigabyte, and two to train it.
_LARGEST_LAYER_WISE = 2_000_000


def default(shapes: Shapes) -> Generator:
    """The generator that ``bayes_by_hypernet`` uses if none is given.

    Layer-wise generators gave the lowest error in the paper; the narrow hidden layers are those of
    its toy problem. For large networks the generator is sliced: its size grows with the widest
    layer instead of with the number of all weights.
    """
    if size(shapes) <= _LARGEST_LAYER_WISE:
        return LayerWise(hidden=(16, 32, 64))
    return Sliced()
