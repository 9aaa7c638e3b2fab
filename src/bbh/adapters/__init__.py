"""Adapters that make posteriors usable in other libraries."""

import importlib
import random
from typing import TYPE_CHECKING, Any

from bbh.adapters.averaged import AveragedNetwork, foolbox_model

if TYPE_CHECKING:
    from bbh.adapters.scikit_learn import BayesianClassifier, BayesianEstimator, BayesianRegressor

__all__ = [
    "AveragedNetwork",
    "BayesianClassifier",
    "BayesianEstimator",
    "BayesianRegressor",
    "foolbox_model",
]
# Imported when first used: scikit-learn and what training needs take long to import.
_OF_SCIKIT_LEARN = ("BayesianClassifier", "BayesianEstimator", "BayesianRegressor")


def __getattr__(name: str) -> Any:
    if name not in _OF_SCIKIT_LEARN:
        raise AttributeError(f"module 'bbh.adapters' has no attribute {name!r}")
    # A module imported on the way draws random numbers; a seed set before keeps its meaning.
    state = random.getstate()
    found = importlib.import_module("bbh.adapters.scikit_learn")
    random.setstate(state)
    globals().update({one: getattr(found, one) for one in _OF_SCIKIT_LEARN})
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
