"""Generators turn noise into weights. Three recipes, which differ in who makes which weights."""

from bbh.generators.base import Generator, Hypernetworks
from bbh.generators.hypernetwork import Head, Hypernetwork
from bbh.generators.initialization import FromNetwork, Glorot, Initialization
from bbh.generators.layerwise import LayerWise
from bbh.generators.single import Single
from bbh.generators.sliced import Sliced

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
]
