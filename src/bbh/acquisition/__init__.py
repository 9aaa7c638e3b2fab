"""Active learning: which unlabelled examples to ask for, from predictions for a pool of them.

Scores are larger for examples that are worth more; ``top``, ``power_sample`` and ``batch_bald``
choose a batch of them and return their places in the pool.
"""

from bbh.acquisition.batch_bald import batch_bald
from bbh.acquisition.choosing import power_sample, top
from bbh.acquisition.scores import bald, entropy, margin, variation_ratio

__all__ = [
    "bald",
    "batch_bald",
    "entropy",
    "margin",
    "power_sample",
    "top",
    "variation_ratio",
]
