"""Gaussian priors: one scale for all weights, or scales by the fan-in of each layer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch import distributions as td

from bbh.network import fan_in
from bbh.priors.base import ElementwisePrior, RowPrior, check_positive, scalar_like
from bbh.samples import Shapes, size


@dataclass(frozen=True)
class Normal(RowPrior, ElementwisePrior):
    """N(loc, scale²) for every weight; ``Normal(1.0)`` is the paper's prior.

    >>> Normal(2.0).log_prob("w", torch.tensor([0.0])).exp()
    tensor([0.1995])
    """

    scale: float = 1.0
    loc: float = 0.0

    def __post_init__(self):
        check_positive("Normal", scale=self.scale)

    def distribution(self, like: Tensor) -> td.Distribution:
        """N(loc, scale²) as a distribution of torch."""
        return td.Normal(
            scalar_like(like, self.loc), scalar_like(like, self.scale), validate_args=False
        )

    def sample_flat(
        self, samples: Mapping[str, Tensor], shapes: Shapes, num_samples: int
    ) -> Float[Tensor, "M D"]:
        """Independent draws for every weight, all at once."""
        like = next(iter(samples.values()))
        # Not with ``distribution``: torch.normal checks its scales, so the host would have to wait
        # for the device.
        noise = torch.randn(num_samples, size(shapes), dtype=like.dtype, device=like.device)
        scaled = noise if self.scale == 1 else noise * self.scale
        return scaled + self.loc if self.loc else scaled

    def flat_log_density(self, flat: Float[Tensor, "S D"], shapes: Shapes) -> Float[Tensor, " S"]:
        """−½ Σ((w − loc)/scale)² − D(log scale + ½ log 2π), in few passes over all weights."""
        del shapes
        shifted = flat - self.loc if self.loc else flat
        constant = flat.shape[1] * math.log(self.scale * math.sqrt(2 * math.pi))
        # Not a dot product, which mixed precision would round.
        return (shifted * shifted).sum(1) * (-0.5 / self.scale**2) - constant

    def log_prob(self, name: str, values: Tensor) -> Tensor:
        """−½((w − loc)/scale)² − log scale − ½ log 2π."""
        # Written out, because this runs over all weights in every step and torch's distribution
        # would take more passes.
        standardised = (values - self.loc) / self.scale
        return -0.5 * standardised.square() - math.log(self.scale * math.sqrt(2 * math.pi))

    def normal(self, name: str) -> "Normal":
        """This prior itself, which is Gaussian for every tensor."""
        del name
        return self


@dataclass(frozen=True)
class FanIn(RowPrior):
    """N(0, scale²/fan-in), where the fan-in is the number of inputs that an output sums over.

    A layer's outputs are then of the size of its inputs times ``scale``, whatever its width; under
    ``Normal(1.0)`` they grow with the square root of the width. Biases have the scale of the
    weights beside them. ``bayes_by_hypernet`` takes this prior by default, with the likelihood's
    ``prior_scale``, and 1 for what recurrent layers apply anew in every time step: any other scale
    would act as often as there are steps.

    >>> shapes = {"fc.weight": torch.Size([10, 25]), "fc.bias": torch.Size([10])}
    >>> FanIn(2.0).for_shapes(shapes).normal("fc.bias")
    Normal(scale=0.4, loc=0.0)

    Args:
        scale: Standard deviation for a fan-in of one.
        fan_ins: The fan-in of each tensor; a posterior fills it in.
        recurrent: The same of hidden-to-hidden kernels and their biases, which torch's recurrent
            layers and cells call ``weight_hh…``, ``weight_hr…`` and ``bias_hh…``; None takes
            ``scale``.
    """

    scale: float = 1.0
    fan_ins: Mapping[str, int] = field(default_factory=dict[str, int], repr=False)
    recurrent: float | None = None

    def __post_init__(self):
        check_positive("FanIn", scale=self.scale)
        if self.recurrent is not None:
            check_positive("FanIn", recurrent=self.recurrent)

    def for_shapes(self, shapes: Shapes) -> "FanIn":
        """The same prior with the fan-ins of these tensors."""
        return replace(self, fan_ins={name: fan_in(name, shapes) for name in shapes})

    def normal(self, name: str) -> Normal:
        """N(0, scale²/fan-in) with the fan-in of that tensor."""
        if name not in self.fan_ins:
            raise ValueError(
                f"{self} does not know the fan-in of {name!r}: a posterior tells it, and "
                "prior.for_shapes(shapes) does where there is none."
            )
        scale = self.scale
        if self.recurrent is not None and _is_recurrent(name):
            scale = self.recurrent
        return Normal(scale / math.sqrt(self.fan_ins[name]))

    def log_prob(self, name: str, values: Tensor) -> Tensor:
        """Log density of every entry."""
        return self.normal(name).log_prob(name, values)

    def sample_flat(
        self, samples: Mapping[str, Tensor], shapes: Shapes, num_samples: int
    ) -> Float[Tensor, "M D"]:
        """Independent draws for every weight, all at once."""
        draws = Normal().sample_flat(samples, shapes, num_samples)
        for normal, piece in self._pieces(draws, shapes):
            piece.mul_(normal.scale)
        return draws

    def flat_log_density(self, flat: Float[Tensor, "S D"], shapes: Shapes) -> Float[Tensor, " S"]:
        """The sum of the log densities of all pieces."""
        pieces = self._pieces(flat, shapes)
        return torch.stack([normal.flat_log_density(piece, {}) for normal, piece in pieces]).sum(0)

    def _pieces(self, flat: Tensor, shapes: Shapes) -> list[tuple[Normal, Tensor]]:
        """The row cut where the scale changes: each piece with the prior of all its weights.

        Tensors that lie side by side and have one scale, as a layer's weight and bias do, are one
        piece, so that there are few.
        """
        normals: list[Normal] = []
        widths: list[int] = []
        for name, shape in shapes.items():
            normal, width = self.normal(name), math.prod(shape)
            if normals and normals[-1] == normal:
                widths[-1] += width
            else:
                normals.append(normal)
                widths.append(width)
        return list(zip(normals, flat.split(widths, dim=1), strict=True))


def _is_recurrent(name: str) -> bool:
    return name.rpartition(".")[2].startswith(("weight_hh", "bias_hh", "weight_hr"))
