"""Bayes by Hypernet: any network, six posteriors, one training loop, one predictor.

>>> import torch, bbh
>>> network = torch.nn.Linear(2, 3)
>>> posterior = bbh.methods.bayes_by_hypernet(network, bbh.likelihoods.Categorical())
>>> bbh.predict(posterior, torch.zeros(5, 2), num_samples=10).mean.shape
torch.Size([5, 3])
"""

import importlib
import random
from typing import TYPE_CHECKING, Any

from bbh import attacks, divergences, generators, inspect, likelihoods, methods, metrics, priors
from bbh.execution.executor import Loop, Vmap
from bbh.noise import GaussianNoise
from bbh.objective import Cosine, Linear, free_energy
from bbh.posterior import AdversarialTraining, Posterior
from bbh.prediction.batch_norm import refresh_batch_norm
from bbh.prediction.predicting import evaluate, predict
from bbh.storage.files import load, save
from bbh.version import __version__

if TYPE_CHECKING:
    from bbh.training.fitting import fit
    from bbh.training.step import DivergedError

__all__ = [
    "AdversarialTraining",
    "Cosine",
    "DivergedError",
    "GaussianNoise",
    "Linear",
    "Loop",
    "Posterior",
    "Vmap",
    "__version__",
    "attacks",
    "divergences",
    "evaluate",
    "fit",
    "free_energy",
    "generators",
    "inspect",
    "likelihoods",
    "load",
    "methods",
    "metrics",
    "predict",
    "priors",
    "refresh_batch_norm",
    "save",
]
# Training brings Lightning Fabric, which takes longer to import than torch: only who trains waits.
_ON_DEMAND = {"DivergedError": "bbh.training.step", "fit": "bbh.training.fitting"}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'bbh' has no attribute {name!r}")
    # Some module on the way draws random numbers; a seed set before must mean the same after.
    state = random.getstate()
    value = getattr(importlib.import_module(_ON_DEMAND[name]), name)
    random.setstate(state)
    globals()[name] = value
    return value
