"""Gaussian likelihoods: with one noise for all examples, or one that the network predicts."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bbh.likelihoods.regression import Regression, rounded
from bbh.standardisation import Standardisation


@dataclass(eq=False, repr=False)
class Gaussian(Regression):
    """targets ~ N(outputs, noise²), with the same noise for all examples.

    Whoever knows the noise describes the model in the units of the targets, and nothing is changed
    about it. Whoever does not leaves it all to the data: ``Gaussian()`` works with targets in any
    units, ``Gaussian(0.1)`` expects targets of a size that the network and its prior can reach.

    Args:
        scale: Standard deviation of the observation noise, in the units of the targets. None if it
            is not known: it is then learned, starting at the targets' own spread, and of several
            outputs each has a noise in proportion to its spread.
        learned: Whether ``scale`` is only the initial value and is learned with the weights. None
            learns it if no scale is given.
        standardise: Whether ``fit`` learns the targets' loc and scale (see ``Regression``), or a
            ``Standardisation`` to use. None does so if no noise scale is given.
    """

    scale: float | None = None
    learned: bool | None = None
    standardise: bool | Standardisation | None = None
    log_scale: Tensor = field(init=False, repr=False)

    def __post_init__(self):
        super().__init__()
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise ValueError(f"Gaussian(scale={self.scale}): the scale must be positive.")
        if self.learned is None:
            self.learned = self.scale is None
        if self.standardise is None:
            self.standardise = self.scale is None
        if self.scale is None and not self.learned:
            raise ValueError(
                "Gaussian(learned=False) needs the noise's scale, in the units of the targets."
            )
        log_scale = torch.tensor(math.log(self.scale or 1.0))
        if self.learned:
            self.log_scale = nn.Parameter(log_scale)
        else:
            self.register_buffer("log_scale", log_scale)
        self._register_targets()

    def standard(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs as means, and the common noise."""
        noise = self.log_scale.exp().to(outputs.device)
        if self.scale is not None and self.target_loc.numel():
            noise = noise / self._known(outputs)[1]  # it is in the units of the targets
        return outputs, noise.expand_as(outputs)

    @property
    def initial_noise(self) -> float:
        """The present noise, on the network's scale; the mean over outputs."""
        loc = torch.zeros_like(self.target_loc if self.target_loc.numel() else self.log_scale)
        return float(self.standard(loc)[1].detach().mean())

    def extra_repr(self) -> str:
        """The present noise in the units of the targets, and their loc and scale."""
        loc = torch.zeros_like(self.target_loc if self.target_loc.numel() else self.log_scale)
        noise = self.split(loc)[1]
        return f"scale={rounded(noise)}, learned={self.learned}, {self._targets_repr()}"


@dataclass(eq=False, repr=False)
class HeteroscedasticGaussian(Regression):
    """targets ~ N(loc, scale²), where the network predicts both loc and scale.

    The last axis of the outputs holds the locs and then the raw scales, with
    scale = min_scale + softplus(raw). A network for k targets thus has 2k outputs. Both are on the
    network's scale: multiplied by the targets' spread where targets are standardised.

    Args:
        min_scale: Smallest scale. It keeps the likelihood bounded where the network fits targets
            exactly.
        standardise: Whether ``fit`` learns the targets' loc and scale (see ``Regression``), or a
            ``Standardisation`` to use.
    """

    min_scale: float = 1e-3
    standardise: bool | Standardisation | None = True

    def __post_init__(self):
        super().__init__()
        if not self.min_scale > 0:
            raise ValueError(f"min_scale must be positive, got {self.min_scale}.")
        self._register_targets()

    def standard(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means from the first half of the outputs, scales from the second half."""
        if outputs.shape[-1] % 2:
            raise ValueError(
                "HeteroscedasticGaussian needs an even number of outputs, means then raw scales; "
                f"the network has {outputs.shape[-1]}."
            )
        loc, raw = outputs.chunk(2, dim=-1)
        return loc, self.min_scale + F.softplus(raw)

    @property
    def initial_noise(self) -> float:
        """min_scale + softplus(0)."""
        return self.min_scale + math.log(2)

    def extra_repr(self) -> str:
        """The smallest scale, and the targets' loc and scale."""
        return f"min_scale={self.min_scale}, {self._targets_repr()}"
