"""The noise z that a hypernetwork turns into weights."""

import math
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

    A generator may get every number of z as a point on a quarter of the unit circle instead, at
    angles that are uniformly distributed:

        (cos ½πu, sin ½πu), u = Φ(z).

    All its inputs are then of the same length. Outputs in proportion to the length of the input
    make hypernetworks hard to train (Ortiz, Guttag & Dalca, 2023).

    >>> noise = GaussianNoise(1, constant_norm=True)
    >>> noise.encoded(torch.zeros(1, 1, 1))
    tensor([[[0.7071, 0.7071]]])

    Args:
        dim: Dimension d of one noise vector.
        shared: Whether the whole network has one vector, instead of one per tensor.
        constant_norm: Whether generators get points on circles.
    """

    dim: int = 1
    shared: bool = False
    constant_norm: bool = False

    def __post_init__(self):
        checks.whole("GaussianNoise(dim)", self.dim, 1, "at least one dimension is needed")

    def sample(self, num_samples: int, num_groups: int, like: Tensor) -> Float[Tensor, "S G Z"]:
        """Noise for S weight samples and G groups, on the device and dtype of ``like``."""
        groups = 1 if self.shared else num_groups
        noise = torch.randn(num_samples, groups, self.dim, device=like.device, dtype=like.dtype)
        return noise.expand(num_samples, num_groups, self.dim)

    @property
    def num_inputs(self) -> int:
        """How many numbers a generator gets for one noise vector."""
        return 2 * self.dim if self.constant_norm else self.dim

    def encoded(self, noise: Float[Tensor, "*S Z"]) -> Float[Tensor, "*S inputs"]:
        """What a generator gets: the noise itself, or all cosines and then all sines."""
        if not self.constant_norm:
            return noise
        angles = 0.5 * math.pi * torch.special.ndtr(noise)
        return torch.cat([angles.cos(), angles.sin()], dim=-1)

    def gram(
        self, noise: Float[Tensor, "*S Z"], by_inputs: Float[Tensor, "*S inputs inputs"]
    ) -> Float[Tensor, "*S Z Z"]:
        """JᵀJ with J = ∂w/∂z, from that with derivatives by a generator's inputs."""
        if not self.constant_norm:
            return by_inputs
        angles = 0.5 * math.pi * torch.special.ndtr(noise)
        # The derivative of the angle: the density of z times the angle of the quarter.
        speed = 0.5 * math.pi * (-0.5 * noise.square()).exp() / math.sqrt(2 * math.pi)
        moved = torch.cat(
            [torch.diag_embed(-angles.sin() * speed), torch.diag_embed(angles.cos() * speed)],
            dim=-2,
        )
        return moved.mT @ by_inputs @ moved
