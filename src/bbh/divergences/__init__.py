"""Six ways to compute KL(q‖p): one exact, five estimated from weight samples.

| divergence | needs of q | needs of the prior | sees correlations |
|---|---|---|---|
| `ClosedForm` | Gaussian marginals | density | – (q is factorised) |
| `NearestNeighbourEntropy` | samples | density | no |
| `JointEntropy` | samples of a differentiable generator, plus noise | density | yes |
| `NearestNeighbour` | samples | samples | no |
| `JointNearestNeighbour` | samples | samples | yes, crudely |
| `Adversarial` | samples | samples | no |
"""

from bbh.divergences.adversarial import Adversarial
from bbh.divergences.base import Comparison, Divergence, NormalMarginals
from bbh.divergences.closed_form import ClosedForm, normal_kl
from bbh.divergences.entropy import NearestNeighbourEntropy
from bbh.divergences.joint_entropy import JointEntropy
from bbh.divergences.nearest_neighbour import JointNearestNeighbour, NearestNeighbour

__all__ = [
    "Adversarial",
    "ClosedForm",
    "Comparison",
    "Divergence",
    "JointEntropy",
    "JointNearestNeighbour",
    "NearestNeighbour",
    "NearestNeighbourEntropy",
    "NormalMarginals",
    "normal_kl",
]
