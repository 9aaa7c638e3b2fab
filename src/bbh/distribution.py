"""The contract that every method fulfils: draw weights, and compute their cost."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from bbh.priors import NoDensityError, Prior
from bbh.samples import Samples, Shapes


class Cost(NamedTuple):
    """The terms that draws of a distribution add to the objective.

    Attributes:
        complexity: Scalar in nats; enters the objective as β/N · complexity.
        auxiliary: Loss of helper networks (a critic). It sends no gradient to the weights.
    """

    complexity: Tensor
    auxiliary: Tensor | float = 0.0


@dataclass(frozen=True)
class TrainingDefaults:
    """How ``fit`` trains a distribution, where it is not told otherwise.

    Attributes:
        learning_rate: Learning rate of Adam.
        annealing: Share of the epochs, at the start, in which the weight of the complexity rises
            from 0 to 1.
        cooling: Share of the epochs, at the end, in which the learning rate falls to nearly 0.
    """

    learning_rate: float = 1e-3
    annealing: float = 0.0
    cooling: float = 0.0


class WeightDistribution(nn.Module, ABC):
    """A distribution over a network's weights, with two methods to write: ``sample`` and ``cost``.

    All other methods and attributes have defaults that suit most distributions.

    Attributes:
        shapes: Names and shapes of the parameters that the distribution covers.
        samples_per_step: The number of draws in a training step, unless ``fit`` is given another.
        likelihood_samples: How many of these draws enter the likelihood; None for all.
        training_defaults: How ``fit`` trains the distribution, unless told otherwise.
        num_distinct: The number of different draws that exist; None for infinitely many.
        statistics_differ: Whether every draw needs batch-norm statistics of its own. False if all
            draws are one setting of the weights, bring their statistics along, or vary from example
            to example in training.
        turns: The number of members that take turns, for a mixture. A training step has a multiple
            of this number of draws.
        num_members: The number of members that share no parameter, so that each can be trained
            without the others; 1 for a distribution that is no ensemble.
        auxiliary_steps: Optimiser steps on the cost's auxiliary term before each training step.
        pretraining_steps: Optimiser steps on the auxiliary term once, before training begins.
    """

    shapes: Shapes
    samples_per_step: int = 1
    likelihood_samples: int | None = None
    training_defaults: TrainingDefaults = TrainingDefaults()
    num_distinct: int | None = None
    statistics_differ: bool = True
    turns: int = 1
    num_members: int = 1
    auxiliary_steps: int = 0
    pretraining_steps: int = 0

    @abstractmethod
    def sample(self, num_samples: int) -> Samples:
        """Draws ``{name: [num_samples, *shape]}`` with gradient, from torch's global generator.

        In training mode a distribution may return ``PerExampleWeight`` tensors, which give every
        example of a batch its own weights in layers that support this.
        """

    @abstractmethod
    def cost(self, samples: Samples, prior: Prior) -> Cost:
        """The cost of these draws, in nats. They must come from this distribution's ``sample``."""

    def draws_per_step(self, likelihood_samples: int | None = None) -> int:
        """The number of draws that a training step takes.

        Args:
            likelihood_samples: How many of them enter the likelihood, if that is not the
                distribution's own number.
        """
        del likelihood_samples
        return self.samples_per_step

    def num_useful(self, num_samples: int) -> int:
        """The number of draws to take when ``num_samples`` are asked for.

        An ensemble of K members has only K different draws, so it takes at most K.
        """
        return num_samples if self.num_distinct is None else min(num_samples, self.num_distinct)

    def even(self, most: int) -> int:
        """The largest number of draws, up to ``most``, of which all members have equal shares.

        It is never less than one draw for each member.
        """
        return max(1, most // self.turns) * self.turns

    def check_prior(self, prior: Prior) -> None:
        """Raises if the prior does not suit this distribution; most need the prior's density.

        ``Posterior`` calls this when it is constructed.
        """
        prior.check(self.shapes)
        if not prior.has_density:
            raise NoDensityError(
                f"{type(self).__name__} needs the prior's density, and {type(prior).__name__} is "
                "known only by samples. Use bbh.methods.bayes_by_hypernet or bayes_by_backprop "
                "with divergence=bbh.divergences.NearestNeighbour()."
            )

    def end_epoch(self) -> None:
        """Called by ``fit`` after every epoch, for distributions that collect trained weights."""

    def some_members(self, members: Sequence[int]) -> "WeightDistribution":
        """A distribution of these members alone, to be trained without the others."""
        raise TypeError(f"{type(self).__name__} has no members that can be trained apart.")

    def put_members(self, members: Sequence[int], part: "WeightDistribution") -> None:
        """Takes over the state of a distribution that ``some_members(members)`` gave."""
        raise TypeError(f"{type(self).__name__} has no members that can be trained apart.")

    def random_shapes(self) -> Shapes:
        """The parameters whose draws differ; all others are point estimates by design."""
        return self.shapes

    def own_temperature(self, num_data: float) -> float:
        """The weight of the complexity that suits so many examples; 1: evidence lower bound."""
        del num_data
        return 1.0

    def noise_groups(self) -> dict[tuple[str, ...], int]:
        """Generated parameters that share one noise vector, and the dimension of that vector."""
        return {}

    def factored_parameters(self) -> list[nn.Parameter]:
        """Matrices whose gradient can be kept in factors; see ``FactoredOptimizer``."""
        return []
