"""Decisions from predictions: calibrate, predict sets, flag outliers, refuse to answer.

Everything here is fitted to *held-out* data, which the posterior was not trained on, and is then
applied to new predictions. `bbh.predict_with_targets(posterior, loader)` gives the two things that
every ``fit`` takes. Use one and the same draws of weights there and afterwards (``samples=``): the
guarantees hold for a fixed predictor, and new draws are a new one.
"""

from bbh.decisions.class_sets import Adaptive, ConformalSets, LeastAmbiguous
from bbh.decisions.intervals import AbsoluteResidual, ConformalIntervals, Normalised, Quantiles
from bbh.decisions.outliers import OutlierThreshold
from bbh.decisions.rejection import Rejection
from bbh.decisions.temperature import TemperatureScaling

__all__ = [
    "AbsoluteResidual",
    "Adaptive",
    "ConformalIntervals",
    "ConformalSets",
    "LeastAmbiguous",
    "Normalised",
    "OutlierThreshold",
    "Quantiles",
    "Rejection",
    "TemperatureScaling",
]
