"""Priors over the weights. All can be sampled, and most have a density.

A prior takes device and dtype from the samples it is given. All but ``Centred`` and
``DiagonalNormal`` hold settings only, no tensors.
"""

from bbh.priors.base import ElementwisePrior, NoDensityError, Prior, RowPrior
from bbh.priors.composed import Centred, PerLayer
from bbh.priors.diagonal import DiagonalNormal
from bbh.priors.gaussian import FanIn, Normal
from bbh.priors.heavy_tailed import Laplace, ScaleMixture, StudentT
from bbh.priors.sampled import Sampled

__all__ = [
    "Centred",
    "DiagonalNormal",
    "ElementwisePrior",
    "FanIn",
    "Laplace",
    "NoDensityError",
    "Normal",
    "PerLayer",
    "Prior",
    "RowPrior",
    "Sampled",
    "ScaleMixture",
    "StudentT",
]
