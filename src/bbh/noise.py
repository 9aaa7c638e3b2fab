"""The noise z that a hypernetwork turns into weights."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bbh import checks


@dataclass(frozen=True)
class GaussianNoise:
    """z ~ N(0, I), with one vector for all tensors or one for each tensor.

    With shared noise of dimension d the posterior is a d-dimensional surface in weight space;
    independent noise gives every tensor its own d dimensions.

    Args:
        dim: Dimension d of one noise vector.
        shared: Whether the whole network has one vector, instead of one per tensor.
    """

    dim: int = 1
    shared: bool = False

    def __post_init__(self):
        checks.whole("GaussianNoise(dim)", self.dim, 1, "at least one dimension is needed")

    def sample(self, num_samples: int, num_groups: int, like: Tensor) -> Float[Tensor, "S G Z"]:
        """Noise for S weight samples and G groups, on the device and dtype of ``like``."""
        groups = 1 if self.shared else num_groups
        noise = torch.randn(num_samples, groups, self.dim, device=like.device, dtype=like.dtype)
        return noise.expand(num_samples, num_groups, self.dim)
