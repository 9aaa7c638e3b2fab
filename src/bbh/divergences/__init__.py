"""Five ways to compute KL(q‖p): one exact, four estimated from weight samples.

| divergence | needs of q | needs of the prior | sees correlations |
|---|---|---|---|
| `ClosedForm` | Gaussian marginals | density | – (q is factorised) |
| `NearestNeighbourEntropy` | samples | density | no |
| `NearestNeighbour` | samples | samples | no |
| `JointNearestNeighbour` | samples | samples | yes, crudely |
| `Adversarial` | samples | samples | no |
"""

from bbh.divergences.adversarial import Adversarial
from bbh.divergences.base import Divergence, NormalMarginals
from bbh.divergences.closed_form import ClosedForm, normal_kl
from bbh.divergences.entropy import NearestNeighbourEntropy
from bbh.divergences.nearest_neighbour import JointNearestNeighbour, NearestNeighbour

__all__ = [
    "Adversarial",
    "ClosedForm",
    "Divergence",
    "JointNearestNeighbour",
    "NearestNeighbour",
    "NearestNeighbourEntropy",
    "NormalMarginals",
    "normal_kl",
]
