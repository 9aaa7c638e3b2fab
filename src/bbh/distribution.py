"""The contract every method fulfils: draw weights, and say what they cost."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor, nn

from bbh.priors import NoDensityError, Prior
from bbh.samples import Samples, Shapes


class Cost(NamedTuple):
    """What draws of a distribution add to the objective.

    Attributes:
        complexity: Scalar in nats; enters the objective as β/N · complexity.
        auxiliary: Loss of helper networks (a critic). It sends no gradient to the weights.
    """

    complexity: Tensor
    auxiliary: Tensor | float = 0.0


class WeightDistribution(nn.Module, ABC):
    """A distribution over a network's weights, with two verbs: ``sample`` and ``cost``.

    The rest of the contract has answers that fit most distributions.

    Attributes:
        shapes: The parameters it covers.
        samples_per_step: How many draws a training step takes unless told otherwise.
        num_distinct: How many different draws there are; None for infinitely many.
        auxiliary_steps: Optimiser steps on the cost's auxiliary term before each training step.
        pretraining_steps: The same, once, before training.
    """

    shapes: Shapes
    samples_per_step: int = 1
    num_distinct: int | None = None
    auxiliary_steps: int = 0
    pretraining_steps: int = 0

    @abstractmethod
    def sample(self, num_samples: int) -> Samples:
        """Draws ``{name: [num_samples, *shape]}`` with gradient, from torch's global generator.

        In training mode a distribution may draw ``PerExampleWeight``, which gives every example of
        a batch weights of its own where the layer allows.
        """

    @abstractmethod
    def cost(self, samples: Samples, prior: Prior) -> Cost:
        """What these draws cost, in nats: a function of the draws that ``sample`` gave."""

    def num_useful(self, num_samples: int) -> int:
        """How many of so many draws are worth taking: of K members at most K."""
        return num_samples if self.num_distinct is None else min(num_samples, self.num_distinct)

    def check_prior(self, prior: Prior) -> None:
        """Raises at construction if the prior does not fit; most need its density."""
        prior.check(self.shapes)
        if not prior.has_density:
            raise NoDensityError(
                f"{type(self).__name__} needs the prior's density, and {type(prior).__name__} is "
                "known only by samples. Use bbh.methods.bayes_by_hypernet or bayes_by_backprop "
                "with divergence=bbh.divergences.NearestNeighbour()."
            )

    def end_epoch(self) -> None:
        """Called by ``fit`` after every epoch, for distributions that look back on training."""

    def random_shapes(self) -> Shapes:
        """The parameters whose draws differ; the others are points by design."""
        return self.shapes

    def noise_groups(self) -> dict[tuple[str, ...], int]:
        """Generated parameters that share one noise vector, and the dimension of that vector."""
        return {}

    def factored_parameters(self) -> list[nn.Parameter]:
        """Matrices whose gradient a backward pass can leave in factors; see ``FactoredAdam``."""
        return []
