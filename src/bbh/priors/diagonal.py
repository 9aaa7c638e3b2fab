"""A Gaussian prior with a mean and a scale of its own for every weight, such as a posterior's."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bbh import checks
from bbh.priors.base import RowPrior
from bbh.priors.gaussian import Normal
from bbh.samples import Params, Shapes, as_vector, flatten, size, unflatten

# Draws that are made at a time: all at once would take the memory of as many networks.
_AT_ONCE = 16


@dataclass(frozen=True, eq=False)
class DiagonalNormal(RowPrior):
    """Independent Gaussians N(loc, scale²), with numbers of their own for every weight.

    With ``of`` it is a summary of an earlier posterior, which becomes the prior of the next data:
    weights that the earlier data determined stay where they are, others may move. For Gaussian
    posteriors this is Nguyen et al. (2018), "Variational continual learning".

    Args:
        locs: Means, of at least all Bayesian parameters. They are copied, and a saved posterior
            contains them, as it does the scales.
        scales: Standard deviations, in the same shapes.
    """

    is_learned = True

    locs: Mapping[str, Tensor]
    scales: Mapping[str, Tensor]
    # Locs and scales in one row, for each device and type that asked for them: a training step
    # must not copy from the host.
    _rows: dict[Any, Tensor] = field(default_factory=dict[Any, Tensor], init=False, repr=False)

    def __post_init__(self):
        for name in ("locs", "scales"):
            copies = {key: value.detach().clone() for key, value in getattr(self, name).items()}
            object.__setattr__(self, name, copies)
            for key, value in copies.items():
                if not value.isfinite().all():
                    raise ValueError(f"DiagonalNormal({name}=…): {key!r} is not finite everywhere.")
        for key, value in self.scales.items():
            if (value <= 0).any():
                raise ValueError(f"DiagonalNormal(scales=…): {key!r} is not positive everywhere.")
        locs, scales = (
            {name: value.shape for name, value in values.items()}
            for values in (self.locs, self.scales)
        )
        if locs != scales:
            raise ValueError("DiagonalNormal: locs and scales differ in their names or shapes.")

    @staticmethod
    def of(
        posterior: nn.Module,
        num_samples: int = 1000,
        *,
        widen: float = 1.0,
        least_scale: float = 1e-3,
    ) -> "DiagonalNormal":
        """Means and standard deviations of a posterior's draws.

        Correlations between weights are lost, and of several modes only the span is left.

        Args:
            posterior: A trained posterior whose weights vary: no MAP estimate.
            num_samples: The number of draws to measure; scales are off by about 1/√(2·number).
            widen: Factor for all standard deviations. Approximate posteriors are often too narrow:
                if the next data are learned badly, take a larger one.
            least_scale: Weights that vary less get this standard deviation.
        """
        checks.whole("num_samples", num_samples, 2, "a spread needs two draws")
        checks.number("widen", widen, positive=True)
        checks.number("least_scale", least_scale, positive=True)
        weights = snapshot(posterior)
        shapes: Shapes = weights.random_shapes()
        if not shapes:
            raise ValueError(
                "this posterior is a single point, which has no spread. Use "
                "bbh.priors.Centred(values, Normal(scale)) around it."
            )
        mean, std = _moments(weights, shapes, num_samples)
        scales = (std * widen).clamp(min=least_scale)
        return DiagonalNormal(_tensors(mean, shapes), _tensors(scales, shapes))

    def sample_flat(
        self, samples: Mapping[str, Tensor], shapes: Shapes, num_samples: int
    ) -> Float[Tensor, "M D"]:
        """Independent draws for every weight, all at once."""
        draws = Normal().sample_flat(samples, shapes, num_samples)
        return torch.addcmul(self.centre(shapes, draws), self.units(shapes, draws), draws)

    def flat_log_density(self, flat: Float[Tensor, "S D"], shapes: Shapes) -> Float[Tensor, " S"]:
        """log p(w) of each row, in nats."""
        units = self.units(shapes, flat)
        standardised = (flat - self.centre(shapes, flat)) / units
        return Normal().flat_log_density(standardised, shapes) - units.log().sum()

    def log_prob(self, name: str, values: Tensor) -> Tensor:
        """Log density of every entry of the tensor called ``name``."""
        shapes = {name: self.locs[name].shape}
        loc, scale = (
            row.view(shapes[name])
            for row in (self.centre(shapes, values), self.units(shapes, values))
        )
        squares = ((values - loc) / scale).square()
        return -0.5 * squares - scale.log() - 0.5 * math.log(2 * math.pi)

    def check(self, shapes: Shapes) -> None:
        """Raises if a tensor is missing or has another shape."""
        for name, shape in shapes.items():
            found = self.locs.get(name)
            if found is None or found.shape != shape:
                has = "missing" if found is None else f"of shape {tuple(found.shape)}"
                raise ValueError(
                    f"DiagonalNormal(locs=…): {name!r} is {has}; the Bayesian parameter has shape "
                    f"{tuple(shape)}."
                )

    def normal(self, name: str) -> Normal:
        """N(0, 1): the distribution of the distance to ``centre`` in ``units``."""
        del name
        return Normal()

    def centre(self, shapes: Shapes, like: Tensor) -> Float[Tensor, " D"]:
        """The means in one row, on the device and dtype of ``like``."""
        return self._row("centre", self.locs, shapes, like)

    def units(self, shapes: Shapes, like: Tensor) -> Float[Tensor, " D"]:
        """The standard deviations in one row, on the device and dtype of ``like``."""
        return self._row("units", self.scales, shapes, like)

    def __repr__(self) -> str:
        number = size({name: value.shape for name, value in self.locs.items()})
        return f"DiagonalNormal({number:,} weights)"

    def _row(self, kind: str, values: Mapping[str, Tensor], shapes: Shapes, like: Tensor) -> Tensor:
        key = (kind, tuple(shapes), like.device, like.dtype)
        if key not in self._rows:
            self._rows[key] = as_vector({name: values[name] for name in shapes}).to(like)
        return self._rows[key]


def snapshot(posterior: nn.Module) -> Any:
    """A copy of the posterior's weight distribution in evaluation mode.

    The posterior may be trained further without moving what was made of it.
    """
    # Priors are below posteriors, so that the class cannot be named here.
    weights = getattr(posterior, "weights", None)
    if not isinstance(weights, nn.Module):
        raise TypeError(
            f"posterior is a {type(posterior).__name__}: pass a posterior of bbh.methods."
        )
    return copy.deepcopy(weights).eval()


def _moments(weights: Any, shapes: Shapes, number: int) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of draws, in float64, from a few draws at a time."""
    total = torch.zeros(())
    squares = torch.zeros(())
    first = None
    with torch.no_grad():
        for done in range(0, number, _AT_ONCE):
            draws = flatten(weights.sample(min(_AT_ONCE, number - done)), shapes).double()
            # Distances from the first draw, so that squares do not lose the digits of a small
            # spread around a large mean.
            first = draws[0] if first is None else first
            distances = draws - first
            total = total + distances.sum(0)
            squares = squares + distances.square().sum(0)
    assert first is not None
    mean = total / number
    variance = (squares / number - mean.square()).clamp(min=0) * number / (number - 1)
    return first + mean, variance.sqrt()


def _tensors(row: Tensor, shapes: Shapes) -> Params:
    return {name: value[0] for name, value in unflatten(row.float().unsqueeze(0), shapes).items()}
