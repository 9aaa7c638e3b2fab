"""Bayes by Hypernet: any network, six posteriors, one training loop, one predictor.

>>> import torch, bbh
>>> network = torch.nn.Linear(2, 3)
>>> posterior = bbh.methods.bayes_by_hypernet(network, bbh.likelihoods.Categorical())
>>> bbh.predict(posterior, torch.zeros(5, 2), num_samples=10).mean.shape
torch.Size([5, 3])
"""

from bbh import divergences, generators, likelihoods, methods, metrics, priors, weights
from bbh.batch_norm import refresh_batch_norm
from bbh.noise import GaussianNoise
from bbh.objective import Cosine, Linear, free_energy
from bbh.posterior import AdversarialTraining, Loop, Posterior, Vmap
from bbh.prediction import evaluate, predict
from bbh.steps import DivergedError
from bbh.storage import load, save
from bbh.training import fit
from bbh.version import __version__

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
    "divergences",
    "evaluate",
    "fit",
    "free_energy",
    "generators",
    "likelihoods",
    "load",
    "methods",
    "metrics",
    "predict",
    "priors",
    "refresh_batch_norm",
    "save",
    "weights",
]
