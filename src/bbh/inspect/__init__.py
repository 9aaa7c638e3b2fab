"""Inspects a posterior over weights: marginals, correlations, spread, dimension, diversity.

``look`` measures everything at once; each part can also be used alone. Matplotlib is imported only
when a figure is drawn.
"""

from bbh.inspect.collapse import Sign, signs_of_collapse
from bbh.inspect.correlation import Correlation, strong_by_chance
from bbh.inspect.dimension import EffectiveDimension
from bbh.inspect.dip import dip_p_value, dip_statistic
from bbh.inspect.diversity import Diversity, functional_diversity
from bbh.inspect.figures import draw_correlation, draw_marginals, draw_spread
from bbh.inspect.inspection import Inspection, look
from bbh.inspect.marginals import Bimodality, Kurtosis, Marginals
from bbh.inspect.moments import Moments
from bbh.inspect.spread import Spread

__all__ = [
    "Bimodality",
    "Correlation",
    "Diversity",
    "EffectiveDimension",
    "Inspection",
    "Kurtosis",
    "Marginals",
    "Moments",
    "Sign",
    "Spread",
    "dip_p_value",
    "dip_statistic",
    "draw_correlation",
    "draw_marginals",
    "draw_spread",
    "functional_diversity",
    "look",
    "signs_of_collapse",
    "strong_by_chance",
]
