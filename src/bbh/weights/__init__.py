"""Distributions over weights, one family per file: what a method is."""

from bbh.weights.base import WeightDistribution
from bbh.weights.dropout import DropoutMasks
from bbh.weights.flow import MultiplicativeFlow
from bbh.weights.flows import FlowKind
from bbh.weights.implicit import Implicit
from bbh.weights.mean_field import MeanFieldNormal
from bbh.weights.particles import Particles
from bbh.weights.per_example import PerExampleWeight, Sampling
from bbh.weights.product import Product

__all__ = [
    "DropoutMasks",
    "FlowKind",
    "Implicit",
    "MeanFieldNormal",
    "MultiplicativeFlow",
    "Particles",
    "PerExampleWeight",
    "Product",
    "Sampling",
    "WeightDistribution",
]
