"""Methods: functions that turn a network into a posterior.

| method | weight distribution |
|---|---|
| ``maximum_a_posteriori`` | one setting |
| ``deep_ensemble`` | several settings |
| ``bayes_by_backprop`` | an independent Gaussian per weight |
| ``mc_dropout`` | kernels with input units switched off at random |
| ``multiplicative_normalizing_flows`` | Gaussians whose means are scaled through a flow |
| ``bayes_by_hypernet`` | whatever a hypernetwork makes of noise |
| ``stochastic_weight_averaging`` | a Gaussian along the path of further training |
| ``mixture`` | several posteriors of one of these methods |

Each method is one file: a distribution over weights, and a function that makes posteriors with it.
``registered()`` lists the methods; ``register`` adds one of your own.
"""

from bbh.distribution import Cost as Cost
from bbh.distribution import WeightDistribution as WeightDistribution
from bbh.methods.assembly import assemble as assemble
from bbh.methods.dropout import *
from bbh.methods.ensemble import *
from bbh.methods.flows import *
from bbh.methods.hypernet import *
from bbh.methods.mean_field import *
from bbh.methods.mixtures import *
from bbh.methods.particles import Particles as Particles
from bbh.methods.point import *
from bbh.methods.product import Product as Product
from bbh.methods.registry import register as register
from bbh.methods.registry import registered as registered
from bbh.methods.swag import *
from bbh.per_example import Sampling as Sampling
