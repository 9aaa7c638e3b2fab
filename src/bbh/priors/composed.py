"""Priors made from other priors: a different one for each tensor, or one moved to given weights."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from bbh.priors.base import ElementwisePrior, Prior
from bbh.priors.diagonal import DiagonalNormal
from bbh.priors.gaussian import Normal
from bbh.samples import Params, Shapes, as_vector


@dataclass(frozen=True)
class PerLayer(Prior):
    """Different priors for different tensors.

    Args:
        choices: Maps glob patterns of parameter names to priors; the first match counts.
        default: The prior of tensors that no pattern matches.

    >>> from bbh.priors import Laplace
    >>> PerLayer({"head.*": Laplace(0.1)}).of("head.weight")
    Laplace(scale=0.1)
    """

    choices: Mapping[str, ElementwisePrior]
    default: ElementwisePrior = field(default_factory=Normal)

    @property
    def is_learned(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether one of the priors is."""
        return any(one.is_learned for one in (*self.choices.values(), self.default))

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


@dataclass(frozen=True, eq=False)
class Centred(Prior):
    """Another prior, moved so that it is centred on given weights: w − values ~ prior.

    Around a trained network it keeps the posterior near weights that are known to work, instead of
    near zero. Each tensor has its own scale if the other prior gives it one, as ``PerLayer`` does.

    >>> import torch
    >>> prior = Centred({"weight": torch.tensor([3.0])}, Normal(0.1))
    >>> prior.log_prob("weight", torch.tensor([3.0])).exp()
    tensor([3.9894])

    Args:
        values: The weights to centre on, at least those of all Bayesian parameters. They are
            copied, and a saved posterior contains them.
        prior: Distribution of the distance from these weights.
    """

    is_learned = True

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
        if isinstance(self.prior, Centred | DiagonalNormal):
            raise ValueError(
                f"Centred(prior={type(self.prior).__name__}(…)): this prior has a centre already. "
                "Use it alone, or move the weights that it is centred on."
            )
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
