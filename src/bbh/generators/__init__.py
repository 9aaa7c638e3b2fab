"""Generators turn noise into weights. Three recipes, which differ in who makes which weights."""

from bbh.generators.base import Generator, Hypernetworks
from bbh.generators.hypernetwork import Head, Hypernetwork
from bbh.generators.initialization import FromNetwork, Glorot, Initialization
from bbh.generators.layerwise import LayerWise
from bbh.generators.single import Single
from bbh.generators.sliced import Sliced
from bbh.samples import Shapes, size

__all__ = [
    "FromNetwork",
    "Generator",
    "Glorot",
    "Head",
    "Hypernetwork",
    "Hypernetworks",
    "Initialization",
    "LayerWise",
    "Single",
    "Sliced",
    "default",
]

# 64 features for each of 2 million weights: half a gigabyte of generator, two to train it.
_LARGEST_LAYER_WISE = 2_000_000


def default(shapes: Shapes) -> Generator:
    """The generator a method takes when none is named.

    Layer-wise generators gave the lowest error in the paper; the narrow hidden layers are those of
    its toy problem. A sliced one grows with the widest layer instead of with all weights.
    """
    if size(shapes) <= _LARGEST_LAYER_WISE:
        return LayerWise(hidden=(16, 32, 64))
    return Sliced()
