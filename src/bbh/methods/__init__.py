"""Methods: network in, posterior out. The library's table of contents.

| method | weight distribution |
|---|---|
| ``maximum_a_posteriori`` | one setting |
| ``deep_ensemble`` | several settings |
| ``bayes_by_backprop`` | an independent Gaussian per weight |
| ``mc_dropout`` | kernels with input units switched off at random |
| ``multiplicative_normalizing_flows`` | Gaussians whose means are scaled through a flow |
| ``bayes_by_hypernet`` | whatever a hypernetwork makes of noise |

A method of your own needs a ``WeightDistribution`` and the decorator ``register``.
"""

from bbh.distribution import Cost, WeightDistribution
from bbh.methods.assembly import assemble
from bbh.methods.dropout import DropoutMasks, mc_dropout
from bbh.methods.ensemble import deep_ensemble
from bbh.methods.flow_steps import FlowKind
from bbh.methods.flows import MultiplicativeFlow, multiplicative_normalizing_flows
from bbh.methods.hypernet import Implicit, bayes_by_hypernet
from bbh.methods.mean_field import MeanFieldNormal, bayes_by_backprop
from bbh.methods.particles import Particles
from bbh.methods.point import maximum_a_posteriori
from bbh.methods.product import Product
from bbh.methods.registry import register, registered
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
    "assemble",
    "bayes_by_backprop",
    "bayes_by_hypernet",
    "deep_ensemble",
    "maximum_a_posteriori",
    "mc_dropout",
    "multiplicative_normalizing_flows",
    "register",
    "registered",
]
