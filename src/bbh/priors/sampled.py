"""A prior that is known only by its samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bbh.priors.base import NoDensityError, Prior
from bbh.priors.diagonal import snapshot
from bbh.samples import Params, Shapes


@dataclass(frozen=True)
class Sampled(Prior):
    """A prior known only by its samples: a trained posterior, an ensemble, a simulator.

    Args:
        sampler: Maps a number n to ``{name: [n, *shape]}``. ``Sampled.of(posterior)`` draws from an
            earlier posterior.
    """

    sampler: Callable[[int], Mapping[str, Tensor]]
    has_density = False
    is_learned = True

    @staticmethod
    def of(posterior: nn.Module) -> "Sampled":
        """Draws from a copy of a posterior, so that this may be trained further.

        All of its shape is kept, and training compares samples with samples, which is noisy. If the
        posterior has one mode, ``DiagonalNormal.of(posterior)`` usually works better.
        """
        return Sampled(snapshot(posterior).sample)

    def sample_like(
        self, samples: Mapping[str, Tensor], shapes: Shapes, num_samples: int
    ) -> Params:
        """Draws from the sampler, without gradient."""
        with torch.no_grad():
            draws = self.sampler(num_samples)
        return {
            name: draws[name].detach().to(samples[name].device, samples[name].dtype)
            for name in shapes
        }

    def log_prob(self, name: str, values: Tensor) -> Tensor:
        """Raises: there is no density."""
        raise NoDensityError(
            "this prior is known only by samples. Use a divergence that compares samples: "
            "bbh.divergences.NearestNeighbour, JointNearestNeighbour or Adversarial."
        )

    def check(self, shapes: Shapes) -> None:
        """Raises if the sampler lacks a tensor or gives it another shape."""
        with torch.no_grad():
            draw = self.sampler(2)
        for name, shape in shapes.items():
            if name not in draw:
                raise ValueError(
                    f"the sampled prior has no tensor {name!r}; it has {', '.join(draw)}."
                )
            if draw[name].shape != (2, *shape):
                raise ValueError(
                    f"the sampled prior gives {name!r} the shape {tuple(draw[name].shape)} for "
                    f"two draws; {(2, *shape)} is needed."
                )
