"""Priors over the weights. All can be sampled, and most have a density.

A prior takes device and dtype from the samples it is given. All but ``Centred`` hold settings only,
no tensors.
"""

import fnmatch
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch import distributions as td

from bbh.network import fan_in
from bbh.samples import Params, Shapes, as_vector, flatten, size, unflatten


class NoDensityError(TypeError):
    """The density was requested of a prior that is known only by samples."""


class Prior(ABC):
    """A distribution over all Bayesian weights, independent between tensors.

    Attributes:
        has_density: Whether ``log_prob`` works; otherwise the prior is known only by samples.
    """

    has_density: bool = True

    @abstractmethod
    def sample_like(
        self, samples: Mapping[str, Tensor], shapes: Shapes, num_samples: int
    ) -> Params:
        """Draws ``{name: [num_samples, *shape]}`` with the device and dtype of ``samples``."""

    def sample_flat(
        self, samples: Mapping[str, Tensor], shapes: Shapes, num_samples: int
    ) -> Float[Tensor, "M D"]:
        """Draws like ``sample_like``, with all weights of a draw in one row, as in ``flatten``."""
        return flatten(self.sample_like(samples, shapes, num_samples), shapes)

    @abstractmethod
    def log_prob(self, name: str, values: Tensor) -> Tensor:
        """Log density of every entry of the tensor called ``name``, in the shape of ``values``."""

    def log_density(self, samples: Mapping[str, Tensor], shapes: Shapes) -> Float[Tensor, " S"]:
        """log p(w) of each weight sample, summed over all weights, in nats."""
        parts = {name: self.log_prob(name, samples[name]) for name in shapes}
        return flatten(parts, shapes).sum(1)

    def flat_log_density(self, flat: Float[Tensor, "S D"], shapes: Shapes) -> Float[Tensor, " S"]:
        """log p(w) like ``log_density``, for weights that are already in one row per sample."""
        return self.log_density(unflatten(flat, shapes), shapes)

    def check(self, shapes: Shapes) -> None:
        """Raises if this prior does not fit these tensors."""
        del shapes

    def for_shapes(self, shapes: Shapes) -> "Prior":
        """The same prior, told the shapes of a network's tensors; ``Posterior`` calls this first.

        Only priors whose scales depend on the shapes need it.
        """
        del shapes
        return self

    def normal(self, name: str) -> "Normal | None":
        """The prior of the tensor called ``name`` if it is a Gaussian, else None.

        If the prior has a ``centre``, this is the distribution of the distance to it.
        """
        del name

    def centre(self, shapes: Shapes, like: Tensor) -> Float[Tensor, " D"] | None:
        """The weights that the prior is centred on, as in ``flatten``; None if there are none."""
        del shapes, like


class ElementwisePrior(Prior):
    """The same one-dimensional distribution for every weight."""

    @abstractmethod
    def distribution(self, like: Tensor) -> td.Distribution:
        """The scalar distribution with parameters on the device and dtype of ``like``."""

    def sample_like(
        self, samples: Mapping[str, Tensor], shapes: Shapes, num_samples: int
    ) -> Params:
        """Independent draws for every weight."""
        return {
            name: self.distribution(samples[name]).sample((num_samples, *shape))
            for name, shape in shapes.items()
        }

    def log_prob(self, name: str, values: Tensor) -> Tensor:
        """Log density of every entry."""
        del name
        return self.distribution(values).log_prob(values)


class RowPrior(Prior):
    """A prior that treats all weights of a draw as one row, which takes fewer operations."""

    @abstractmethod
    def sample_flat(
        self, samples: Mapping[str, Tensor], shapes: Shapes, num_samples: int
    ) -> Float[Tensor, "M D"]:
        """Draws with all weights of a draw in one row, as in ``flatten``."""

    @abstractmethod
    def flat_log_density(self, flat: Float[Tensor, "S D"], shapes: Shapes) -> Float[Tensor, " S"]:
        """log p(w) for weights in one row per sample, in nats."""

    def sample_like(
        self, samples: Mapping[str, Tensor], shapes: Shapes, num_samples: int
    ) -> Params:
        """Draws of ``sample_flat``, divided into tensors."""
        return unflatten(self.sample_flat(samples, shapes, num_samples), shapes)

    def log_density(self, samples: Mapping[str, Tensor], shapes: Shapes) -> Float[Tensor, " S"]:
        """log p(w) of each weight sample, summed over all weights, in nats."""
        return self.flat_log_density(flatten(samples, shapes), shapes)


@dataclass(frozen=True)
class Normal(RowPrior, ElementwisePrior):
    """N(loc, scale²) for every weight; ``Normal(1.0)`` is the paper's prior.

    >>> Normal(2.0).log_prob("w", torch.tensor([0.0])).exp()
    tensor([0.1995])
    """

    scale: float = 1.0
    loc: float = 0.0

    def __post_init__(self):
        _check_positive("Normal", scale=self.scale)

    def distribution(self, like: Tensor) -> td.Distribution:
        """N(loc, scale²) as a distribution of torch."""
        return td.Normal(_full(like, self.loc), _full(like, self.scale), validate_args=False)

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
    ``prior_scale``.

    >>> shapes = {"fc.weight": torch.Size([10, 25]), "fc.bias": torch.Size([10])}
    >>> FanIn(2.0).for_shapes(shapes).normal("fc.bias")
    Normal(scale=0.4, loc=0.0)

    Args:
        scale: Standard deviation for a fan-in of one.
        fan_ins: The fan-in of each tensor; a posterior fills it in.
    """

    scale: float = 1.0
    fan_ins: Mapping[str, int] = field(default_factory=dict[str, int], repr=False)

    def __post_init__(self):
        _check_positive("FanIn", scale=self.scale)

    def for_shapes(self, shapes: Shapes) -> "FanIn":
        """The same prior with the fan-ins of these tensors."""
        return FanIn(self.scale, {name: fan_in(name, shapes) for name in shapes})

    def normal(self, name: str) -> Normal:
        """N(0, scale²/fan-in) with the fan-in of that tensor."""
        if name not in self.fan_ins:
            raise ValueError(
                f"{self} does not know the fan-in of {name!r}: a posterior tells it, and "
                "prior.for_shapes(shapes) does where there is none."
            )
        return Normal(self.scale / math.sqrt(self.fan_ins[name]))

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


@dataclass(frozen=True)
class Laplace(ElementwisePrior):
    """Density exp(−|w|/scale) / (2 scale): many weights near zero and a few large ones."""

    scale: float = 1.0

    def __post_init__(self):
        _check_positive("Laplace", scale=self.scale)

    def distribution(self, like: Tensor) -> td.Distribution:
        """The Laplace distribution of torch, centred at zero."""
        return td.Laplace(_full(like, 0.0), _full(like, self.scale), validate_args=False)


@dataclass(frozen=True)
class StudentT(ElementwisePrior):
    """Student's t with ``df`` degrees of freedom, scaled: heavier tails than a Gaussian."""

    df: float = 3.0
    scale: float = 1.0

    def __post_init__(self):
        _check_positive("StudentT", df=self.df, scale=self.scale)

    def distribution(self, like: Tensor) -> td.Distribution:
        """Student's t as a distribution of torch, centred at zero."""
        df, zero, scale = (_full(like, value) for value in (self.df, 0.0, self.scale))
        return td.StudentT(df, zero, scale, validate_args=False)


@dataclass(frozen=True)
class ScaleMixture(ElementwisePrior):
    """Σ_k weight_k · N(0, scale_k²), Blundell et al. (2015), equation 7.

    The defaults are the mixture of the authors' first release.
    """

    scales: tuple[float, ...] = (0.01, 5.0)
    weights: tuple[float, ...] = (0.7, 0.3)

    def __post_init__(self):
        if len(self.scales) != len(self.weights) or not self.scales:
            raise ValueError(
                f"ScaleMixture needs one weight per scale, got {len(self.scales)} scales "
                f"and {len(self.weights)} weights."
            )
        for scale in self.scales:
            _check_positive("ScaleMixture", scales=scale)
        if min(self.weights) < 0 or not math.isclose(sum(self.weights), 1.0, abs_tol=1e-6):
            raise ValueError(f"ScaleMixture weights must sum to one, got {self.weights}.")

    def distribution(self, like: Tensor) -> td.Distribution:
        """A mixture of zero-mean Gaussians."""
        scales = torch.stack([_full(like, scale) for scale in self.scales])
        weights = torch.stack([_full(like, weight) for weight in self.weights])
        return td.MixtureSameFamily(
            td.Categorical(weights, validate_args=False),
            td.Normal(torch.zeros_like(scales), scales, validate_args=False),
            validate_args=False,
        )


@dataclass(frozen=True)
class PerLayer(Prior):
    """Different priors for different tensors.

    Args:
        choices: Maps glob patterns of parameter names to priors; the first match counts.
        default: The prior of tensors that no pattern matches.

    >>> PerLayer({"head.*": Laplace(0.1)}).of("head.weight")
    Laplace(scale=0.1)
    """

    choices: Mapping[str, ElementwisePrior]
    default: ElementwisePrior = field(default_factory=Normal)

    def of(self, name: str) -> ElementwisePrior:
        """The prior of the tensor called ``name``."""
        for pattern, prior in self.choices.items():
            if fnmatch.fnmatchcase(name, pattern):
                return prior
        return self.default

    def sample_like(
        self, samples: Mapping[str, Tensor], shapes: Shapes, num_samples: int
    ) -> Params:
        """Draws each tensor from its own prior."""
        draws: Params = {}
        for name, shape in shapes.items():
            draws |= self.of(name).sample_like(samples, {name: shape}, num_samples)
        return draws

    def log_prob(self, name: str, values: Tensor) -> Tensor:
        """Log density under the prior of that tensor."""
        return self.of(name).log_prob(name, values)

    def check(self, shapes: Shapes) -> None:
        """Raises if a pattern matches no tensor: a typo would silently select the default."""
        for pattern in self.choices:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in shapes):
                raise ValueError(
                    f"PerLayer pattern {pattern!r} matches none of the Bayesian parameters "
                    f"({', '.join(shapes)})."
                )

    def normal(self, name: str) -> Normal | None:
        """The prior of that tensor if it is a Gaussian, else None."""
        return self.of(name).normal(name)


@dataclass(frozen=True)
class Sampled(Prior):
    """A prior known only by its samples: a trained posterior, an ensemble, a simulator.

    Args:
        sampler: Maps a number n to ``{name: [n, *shape]}``. An earlier posterior becomes the
            prior of the next with ``Sampled(posterior.weights.sample)``.
    """

    sampler: Callable[[int], Mapping[str, Tensor]]
    has_density = False

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


@dataclass(frozen=True, eq=False)
class Centred(Prior):
    """Another prior, moved so that it is centred on given weights: w − values ~ prior.

    Around a trained network it keeps the posterior near weights that are known to work, instead of
    near zero. Each tensor has its own scale if the other prior gives it one, as ``PerLayer`` does.

    >>> prior = Centred({"weight": torch.tensor([3.0])}, Normal(0.1))
    >>> prior.log_prob("weight", torch.tensor([3.0])).exp()
    tensor([3.9894])

    Args:
        values: The weights to centre on, at least those of all Bayesian parameters. They are
            copied, and a saved posterior contains them.
        prior: Distribution of the distance from these weights.
    """

    values: Mapping[str, Tensor]
    prior: Prior
    # Copies of the values in one row, for each device and type that asked for them: a training
    # step must not copy from the host.
    _rows: dict[Any, Tensor] = field(default_factory=dict[Any, Tensor], init=False, repr=False)

    def __post_init__(self):
        copies = {name: value.detach().clone() for name, value in self.values.items()}
        for name, value in copies.items():
            if not value.isfinite().all():
                raise ValueError(f"Centred(values=…): {name!r} has entries that are not finite.")
        object.__setattr__(self, "values", copies)
        object.__setattr__(self, "has_density", self.prior.has_density)

    @staticmethod
    def on(network: nn.Module, prior: Prior | None = None) -> "Centred":
        """Centres a prior on the current weights of a network.

        The default is ``Normal(0.1)``: a posterior around a trained network should stay near it.
        """
        return Centred(dict(network.named_parameters()), prior or Normal(0.1))

    def for_shapes(self, shapes: Shapes) -> "Centred":
        """The same prior, where the other prior knows the shapes."""
        return Centred(self.values, self.prior.for_shapes(shapes))

    def sample_like(
        self, samples: Mapping[str, Tensor], shapes: Shapes, num_samples: int
    ) -> Params:
        """Draws from the other prior, moved."""
        draws = self.prior.sample_like(samples, shapes, num_samples)
        return {name: draw + self._value(name, draw) for name, draw in draws.items()}

    def sample_flat(
        self, samples: Mapping[str, Tensor], shapes: Shapes, num_samples: int
    ) -> Float[Tensor, "M D"]:
        """Draws from the other prior, moved, with all weights of a draw in one row."""
        draws = self.prior.sample_flat(samples, shapes, num_samples)
        return draws + self.centre(shapes, draws)

    def log_prob(self, name: str, values: Tensor) -> Tensor:
        """Log density of the distance of every entry."""
        return self.prior.log_prob(name, values - self._value(name, values))

    def flat_log_density(self, flat: Float[Tensor, "S D"], shapes: Shapes) -> Float[Tensor, " S"]:
        """log p(w) for weights that are already in one row per sample."""
        return self.prior.flat_log_density(flat - self.centre(shapes, flat), shapes)

    def check(self, shapes: Shapes) -> None:
        """Raises if a tensor is missing or has another shape."""
        for name, shape in shapes.items():
            found = self.values.get(name)
            if found is None or found.shape != shape:
                has = "missing" if found is None else f"of shape {tuple(found.shape)}"
                raise ValueError(
                    f"Centred(values=…): {name!r} is {has}; the Bayesian parameter has shape "
                    f"{tuple(shape)}."
                )
        self.prior.check(shapes)

    def normal(self, name: str) -> Normal | None:
        """The distribution of the distance from ``values`` if it is a Gaussian, else None."""
        return self.prior.normal(name)

    def centre(self, shapes: Shapes, like: Tensor) -> Float[Tensor, " D"]:
        """The given weights in one row, on the device and dtype of ``like``."""
        key = (tuple(shapes), like.device, like.dtype)
        if key not in self._rows:
            self._rows[key] = as_vector({name: self.values[name] for name in shapes}).to(like)
        return self._rows[key]

    def _value(self, name: str, like: Tensor) -> Tensor:
        shape = self.values[name].shape
        return self.centre({name: shape}, like).view(shape)


def _check_positive(owner: str, **values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{owner}({name}={value}): {name} must be positive and finite.")


def _full(like: Tensor, value: float) -> Tensor:
    # Created on the device: a copy from the host would make it wait in every step.
    return like.new_full((), value)
