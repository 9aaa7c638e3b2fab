"""Norms: they measure the size of a perturbation and define the ball an attack must stay in."""

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
        """The size of each example's perturbation."""

    @abstractmethod
    def steepest(self, gradient: Float[Tensor, "B *event"]) -> Float[Tensor, "B *event"]:
        """The step of size 1 that increases a loss with this gradient most; 0 if it is 0."""

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
    """max_i |δ_i|: the largest change of a single entry (of a pixel, say).

    >>> LInf().size(torch.tensor([[3.0, -4.0]]))
    tensor([4.])
    """

    def size(self, perturbation: Float[Tensor, "B *event"]) -> Float[Tensor, " B"]:
        """The largest absolute change of an entry."""
        return _rows(perturbation).abs().amax(1)

    def steepest(self, gradient: Float[Tensor, "B *event"]) -> Float[Tensor, "B *event"]:
        """The signs of the gradient."""
        return gradient.sign()

    def project(
        self, perturbation: Float[Tensor, "B *event"], epsilon: float
    ) -> Float[Tensor, "B *event"]:
        """The perturbation with every entry clipped to ±epsilon."""
        return perturbation.clamp(-epsilon, epsilon)

    def random(self, like: Float[Tensor, "B *event"]) -> Float[Tensor, "B *event"]:
        """Perturbations from the uniform distribution over the cube [−1, 1]^d."""
        return 2 * torch.rand_like(like) - 1


@dataclass(frozen=True)
class L2(Norm):
    """(Σ_i δ_i²)^½: the length of the perturbation.

    >>> L2().size(torch.tensor([[3.0, -4.0]]))
    tensor([5.])
    """

    def size(self, perturbation: Float[Tensor, "B *event"]) -> Float[Tensor, " B"]:
        """The Euclidean length."""
        return torch.linalg.vector_norm(_rows(perturbation), dim=1)

    def steepest(self, gradient: Float[Tensor, "B *event"]) -> Float[Tensor, "B *event"]:
        """The gradient scaled to length 1."""
        # Scaled to largest entry 1 first: gradients of a very confident network are so small that
        # their squares would underflow to 0.
        tiny = torch.finfo(gradient.dtype).tiny
        scaled = gradient / _along(LInf().size(gradient).clamp(min=tiny), gradient)
        return scaled / _along(self.size(scaled).clamp(min=tiny), gradient)

    def project(
        self, perturbation: Float[Tensor, "B *event"], epsilon: float
    ) -> Float[Tensor, "B *event"]:
        """The perturbation, shortened to length ``epsilon`` where it is longer."""
        tiny = torch.finfo(perturbation.dtype).tiny
        factor = (epsilon / self.size(perturbation).clamp(min=tiny)).clamp(max=1)
        return perturbation * _along(factor, perturbation)

    def random(self, like: Float[Tensor, "B *event"]) -> Float[Tensor, "B *event"]:
        """Uniform in the ball: a random direction times a radius with density ∝ r^(d−1)."""
        directions = self.steepest(torch.randn_like(like))
        radii = torch.rand_like(self.size(like)) ** (1 / max(1, like[0].numel()))
        return directions * _along(radii, like)


def _rows(values: Tensor) -> Float[Tensor, "B D"]:
    return values.reshape(len(values), -1)


def _along(per_example: Float[Tensor, " B"], values: Tensor) -> Tensor:
    """One number per example in a shape that broadcasts over the batch."""
    return per_example.view(-1, *[1] * (values.dim() - 1))
