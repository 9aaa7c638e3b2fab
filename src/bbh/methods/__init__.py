"""Methods: network in, posterior out. The library's table of contents."""

from bbh.cost import Cost
from bbh.distribution import WeightDistribution
from bbh.methods.constructors import (
    bayes_by_backprop,
    bayes_by_hypernet,
    deep_ensemble,
    maximum_a_posteriori,
    mc_dropout,
    multiplicative_normalizing_flows,
)
from bbh.methods.dropout import DropoutMasks
from bbh.methods.flow_steps import FlowKind
from bbh.methods.flows import MultiplicativeFlow
from bbh.methods.hypernet import Implicit
from bbh.methods.mean_field import MeanFieldNormal
from bbh.methods.particles import Particles
from bbh.methods.product import Product
from bbh.per_example import Sampling

__all__ = [
    "Cost",
    "DropoutMasks",
    "FlowKind",
    "Implicit",
    "MeanFieldNormal",
    "MultiplicativeFlow",
    "Particles",
    "Product",
    "Sampling",
    "WeightDistribution",
    "bayes_by_backprop",
    "bayes_by_hypernet",
    "deep_ensemble",
    "maximum_a_posteriori",
    "mc_dropout",
    "multiplicative_normalizing_flows",
]
