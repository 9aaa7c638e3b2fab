"""What "small" means: the size of a perturbation, and the ball an attack must stay in."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Norm(ABC):
    """A norm of perturbations, one number for each example of a batch."""

    @abstractmethod
    def size(self, perturbation: Float[Tensor, "B *event"]) -> Float[Tensor, " B"]:
        """How large each example's perturbation is."""

    @abstractmethod
    def steepest(self, gradient: Float[Tensor, "B *event"]) -> Float[Tensor, "B *event"]:
        """The step of size 1 along which a loss with this gradient rises most; 0 for 0."""

    @abstractmethod
    def project(
        self, perturbation: Float[Tensor, "B *event"], epsilon: float
    ) -> Float[Tensor, "B *event"]:
        """The nearest perturbation of size at most ``epsilon``."""

    @abstractmethod
    def random(self, like: Float[Tensor, "B *event"]) -> Float[Tensor, "B *event"]:
        """Perturbations from the uniform distribution over the ball of radius 1."""


@dataclass(frozen=True)
class LInf(Norm):
    """max_i |δ_i|: no pixel changes by more.

    >>> LInf().size(torch.tensor([[3.0, -4.0]]))
    tensor([4.])
    """

    def size(self, perturbation: Float[Tensor, "B *event"]) -> Float[Tensor, " B"]:
        """The largest change."""
        return _rows(perturbation).abs().amax(1)

    def steepest(self, gradient: Float[Tensor, "B *event"]) -> Float[Tensor, "B *event"]:
        """Signs."""
        return gradient.sign()

    def project(
        self, perturbation: Float[Tensor, "B *event"], epsilon: float
    ) -> Float[Tensor, "B *event"]:
        """Every change cut off at ±epsilon."""
        return perturbation.clamp(-epsilon, epsilon)

    def random(self, like: Float[Tensor, "B *event"]) -> Float[Tensor, "B *event"]:
        """Uniform in the cube."""
        return 2 * torch.rand_like(like) - 1


@dataclass(frozen=True)
class L2(Norm):
    """(Σ_i δ_i²)^½: the length of the perturbation.

    >>> L2().size(torch.tensor([[3.0, -4.0]]))
    tensor([5.])
    """

    def size(self, perturbation: Float[Tensor, "B *event"]) -> Float[Tensor, " B"]:
        """The length."""
        return torch.linalg.vector_norm(_rows(perturbation), dim=1)

    def steepest(self, gradient: Float[Tensor, "B *event"]) -> Float[Tensor, "B *event"]:
        """The gradient at length 1."""
        # A sure network has gradients whose squares are below the smallest number there is.
        tiny = torch.finfo(gradient.dtype).tiny
        scaled = gradient / _along(LInf().size(gradient).clamp(min=tiny), gradient)
        return scaled / _along(self.size(scaled).clamp(min=tiny), gradient)

    def project(
        self, perturbation: Float[Tensor, "B *event"], epsilon: float
    ) -> Float[Tensor, "B *event"]:
        """Shortened to ``epsilon`` where it is longer."""
        tiny = torch.finfo(perturbation.dtype).tiny
        factor = (epsilon / self.size(perturbation).clamp(min=tiny)).clamp(max=1)
        return perturbation * _along(factor, perturbation)

    def random(self, like: Float[Tensor, "B *event"]) -> Float[Tensor, "B *event"]:
        """Uniform in the ball: a random direction, and a radius with density ∝ r^(d−1)."""
        directions = self.steepest(torch.randn_like(like))
        radii = torch.rand_like(self.size(like)) ** (1 / max(1, like[0].numel()))
        return directions * _along(radii, like)


def _rows(values: Tensor) -> Float[Tensor, "B D"]:
    return values.reshape(len(values), -1)


def _along(per_example: Float[Tensor, " B"], values: Tensor) -> Tensor:
    """One number per example in a shape that broadcasts over the batch."""
    return per_example.view(-1, *[1] * (values.dim() - 1))
