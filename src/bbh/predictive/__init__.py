"""Predictive distributions for new inputs: mixtures over weight draws, and their uncertainty."""

from bbh.predictive.base import Predictive
from bbh.predictive.classes import ClassPredictive, OrdinalPredictive
from bbh.predictive.counts import CountPredictive
from bbh.predictive.mixture import MixturePredictive, log_mean_over_draws
from bbh.predictive.quantile import QuantilePredictive
from bbh.predictive.regression import RegressionPredictive

__all__ = [
    "ClassPredictive",
    "CountPredictive",
    "MixturePredictive",
    "OrdinalPredictive",
    "Predictive",
    "QuantilePredictive",
    "RegressionPredictive",
    "log_mean_over_draws",
]
