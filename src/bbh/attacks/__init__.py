"""Adversarial attacks on the averaged predictive distribution of any posterior.

>>> import torch, bbh
>>> posterior = bbh.methods.bayes_by_backprop(
...     torch.nn.Linear(4, 3), bbh.likelihoods.Categorical()
... )
>>> images, labels = torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1])
>>> attacked = FGSM(num_samples=10)(posterior, images, labels, epsilon=0.1)
>>> bool(attacked.size(LInf()).max() <= 0.1 + 1e-6)
True
"""

from bbh.attacks.base import Attack, Attacked
from bbh.attacks.evaluation import Robustness, robustness
from bbh.attacks.fgsm import FGSM, LegacyFGSM
from bbh.attacks.norms import L2, LInf, Norm
from bbh.attacks.pgd import PGD

__all__ = [
    "FGSM",
    "L2",
    "PGD",
    "Attack",
    "Attacked",
    "LInf",
    "LegacyFGSM",
    "Norm",
    "Robustness",
    "robustness",
]
