"""Adapters that make posteriors usable in other libraries.

Those for scikit-learn, Lightning and Hugging Face are imported when they are first used: the last
two need not be installed, and the first takes long to import.
"""

import importlib
import random
from typing import TYPE_CHECKING, Any

from bbh.adapters.averaged import AveragedNetwork, foolbox_model
from bbh.adapters.exporting import ExportedPosterior, export
from bbh.adapters.hub import load_pretrained, push_to_hub, save_pretrained

if TYPE_CHECKING:
    from bbh.adapters.hugging_face import BayesianTrainer
    from bbh.adapters.lightning import LightningPosterior
    from bbh.adapters.lightning_callback import UncertaintyCallback
    from bbh.adapters.scikit_learn import BayesianClassifier, BayesianEstimator, BayesianRegressor

__all__ = [
    "AveragedNetwork",
    "BayesianClassifier",
    "BayesianEstimator",
    "BayesianRegressor",
    "BayesianTrainer",
    "ExportedPosterior",
    "LightningPosterior",
    "UncertaintyCallback",
    "export",
    "foolbox_model",
    "load_pretrained",
    "push_to_hub",
    "save_pretrained",
]
_WHERE = {
    "BayesianClassifier": "bbh.adapters.scikit_learn",
    "BayesianEstimator": "bbh.adapters.scikit_learn",
    "BayesianRegressor": "bbh.adapters.scikit_learn",
    "BayesianTrainer": "bbh.adapters.hugging_face",
    "LightningPosterior": "bbh.adapters.lightning",
    "UncertaintyCallback": "bbh.adapters.lightning_callback",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'bbh.adapters' has no attribute {name!r}")
    # A module imported on the way draws random numbers; a seed set before keeps its meaning.
    state = random.getstate()
    try:
        return getattr(importlib.import_module(_WHERE[name]), name)
    finally:
        random.setstate(state)


def __dir__() -> list[str]:
    return __all__
