"""What a prior is, and two ways to write one: entry by entry, or for all weights in one row."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor
from torch import distributions as td

from bbh.samples import Params, Shapes, flatten, unflatten

if TYPE_CHECKING:
    from bbh.priors.gaussian import Normal


class NoDensityError(TypeError):
    """The density was requested of a prior that is known only by samples."""


class Prior(ABC):
    """A distribution over all Bayesian weights, independent between tensors.

    Attributes:
        has_density: Whether ``log_prob`` works; otherwise the prior is known only by samples.
        is_learned: Whether it says what other data have taught, such as an earlier posterior or a
            trained network. ``fit`` then gives it its full weight unless told otherwise.
    """

    has_density: bool = True
    is_learned: bool = False

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

        If the prior has a ``centre``, this is the distribution of the distance to it, in ``units``
        if the prior has any.
        """
        del name

    def centre(self, shapes: Shapes, like: Tensor) -> Float[Tensor, " D"] | None:
        """The weights that the prior is centred on, as in ``flatten``; None if there are none."""
        del shapes, like

    def units(self, shapes: Shapes, like: Tensor) -> Float[Tensor, " D"] | None:
        """What distances from the centre are measured in, for every weight; None for 1."""
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


def check_positive(owner: str, **values: float) -> None:
    """Raises if one of the named settings is not positive and finite."""
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{owner}({name}={value}): {name} must be positive and finite.")


def scalar_like(like: Tensor, value: float) -> Tensor:
    """The number as a tensor with the device and dtype of ``like``."""
    # Created on the device: a copy from the host would make it wait in every step.
    return like.new_full((), value)
