"""Bayes by Hypernet: any network, eight methods, one training loop, one predictor.

>>> import torch, bbh
>>> network = torch.nn.Linear(2, 3)
>>> posterior = bbh.methods.bayes_by_hypernet(network, bbh.likelihoods.Categorical())
>>> bbh.predict(posterior, torch.zeros(5, 2), num_samples=10).mean.shape
torch.Size([5, 3])
"""

import importlib
import random
from typing import TYPE_CHECKING, Any

from bbh import (
    acquisition,
    adapters,
    attacks,
    decisions,
    divergences,
    generators,
    inspect,
    likelihoods,
    methods,
    metrics,
    plots,
    priors,
)
from bbh.adapters.exporting import export
from bbh.annealing import Cosine, Linear
from bbh.execution import Loop, Vmap
from bbh.noise import GaussianNoise
from bbh.objective import free_energy
from bbh.posterior import AdversarialTraining, Posterior
from bbh.prediction import evaluate, predict, predict_with_targets, refresh_batch_norm
from bbh.samples import Samples
from bbh.storage import load, save
from bbh.version import __version__

if TYPE_CHECKING:
    from bbh import training
    from bbh.training import (
        Checkpoint,
        DivergedError,
        TrainingStep,
        Validation,
        cached_features,
        fit,
        fit_members,
        sharded_strategy,
        tune,
    )

__all__ = [
    "AdversarialTraining",
    "Checkpoint",
    "Cosine",
    "DivergedError",
    "GaussianNoise",
    "Linear",
    "Loop",
    "Posterior",
    "Samples",
    "TrainingStep",
    "Validation",
    "Vmap",
    "__version__",
    "acquisition",
    "adapters",
    "attacks",
    "cached_features",
    "decisions",
    "divergences",
    "evaluate",
    "export",
    "fit",
    "fit_members",
    "free_energy",
    "generators",
    "inspect",
    "likelihoods",
    "load",
    "methods",
    "metrics",
    "plots",
    "predict",
    "predict_with_targets",
    "priors",
    "refresh_batch_norm",
    "save",
    "sharded_strategy",
    "training",
    "tune",
]
# These names are imported when they are first used: training needs Lightning Fabric, which takes
# longer to import than torch, and a program that only predicts should not wait for it.
_OF_TRAINING = (
    "Checkpoint",
    "DivergedError",
    "TrainingStep",
    "Validation",
    "cached_features",
    "fit",
    "fit_members",
    "sharded_strategy",
    "tune",
)


def __getattr__(name: str) -> Any:
    if name != "training" and name not in _OF_TRAINING:
        raise AttributeError(f"module 'bbh' has no attribute {name!r}")
    # A module imported on the way draws random numbers; a seed set before keeps its meaning.
    state = random.getstate()
    training = importlib.import_module("bbh.training")
    random.setstate(state)
    globals().update({one: getattr(training, one) for one in _OF_TRAINING}, training=training)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
