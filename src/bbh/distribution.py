"""The contract every method fulfils: draw weights, and say what they cost."""

from abc import ABC, abstractmethod

from torch import nn

from bbh.cost import Cost
from bbh.priors import NoDensityError, Prior
from bbh.samples import Params, Shapes


class WeightDistribution(nn.Module, ABC):
    """A distribution over a network's weights, with two verbs: ``sample`` and ``cost``.

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
    def sample(self, num_samples: int) -> Params:
        """Draws ``{name: [num_samples, *shape]}`` with gradient, from torch's global generator.

        In training mode a distribution may return ``PerExampleWeight``, which
        gives every example of the batch its own draw where the layer allows.
        """

    def num_useful(self, num_samples: int) -> int:
        """How many of so many draws are worth taking: of K members at most K."""
        return num_samples if self.num_distinct is None else min(num_samples, self.num_distinct)

    @abstractmethod
    def cost(self, samples: Params, prior: Prior) -> Cost:
        """What these draws cost, in nats."""

    def check_prior(self, prior: Prior) -> None:
        """Raises at construction if the prior does not fit; most need its density."""
        prior.check(self.shapes)
        if not prior.has_density:
            raise NoDensityError(
                f"{type(self).__name__} needs the prior's density, and {type(prior).__name__} is "
                "known only by samples. Use bbh.methods.bayes_by_hypernet or bayes_by_backprop "
                "with divergence=bbh.divergences.NearestNeighbour()."
            )
