"""The base of a study's methods: their settings, and the posterior these describe."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import nn

import bbh
from bbh import divergences
from bbh.divergences.base import check_num_samples
from bbh.likelihoods import Likelihood
from bbh.priors import Prior
from bbh.samples import Shapes
from bbh_studies.settings import legacy
from bbh_studies.settings.words import ConfigError, choose

_FLATTENED = "flattened"
_DIVERGENCES: dict[str, Callable[["WithDivergence"], divergences.Divergence]] = {
    "closed_form": lambda _: divergences.ClosedForm(),
    "nearest_neighbour": lambda one: divergences.NearestNeighbour(one.prior_samples or None),
    "joint": lambda one: divergences.JointNearestNeighbour(one.prior_samples or None),
    "joint_entropy": lambda _: divergences.JointEntropy(),
    "entropy": lambda one: divergences.NearestNeighbourEntropy(one.neighbours or None),
    "adversarial": lambda one: divergences.Adversarial(steps=one.critic_steps),
    _FLATTENED: lambda _: legacy.FlattenedNearestNeighbour(),
}


class Model(NamedTuple):
    """The model that a method makes a posterior for: the same for all methods of a study.

    Attributes:
        make_network: Makes a freshly initialised network.
        likelihood: How targets arise from its outputs.
        prior: Belief about its weights.
        bayesian: Which parameters get a distribution; None for the library's choice.
    """

    make_network: Callable[[], nn.Module]
    likelihood: Likelihood[Any]
    prior: Prior
    bayesian: tuple[str, ...] | None


@dataclass(frozen=True)
class Method(ABC):
    """A method with its settings, which are its fields.

    Attributes:
        word: What the command line and records call it.
        title: What tables call it.
        is_trained: Whether it is fitted by gradient steps.
        can_be_inspected: Whether it has a distribution over weights to look at: point estimates
            and dropout have none.
    """

    word: ClassVar[str]
    title: ClassVar[str]
    is_trained: ClassVar[bool] = True
    can_be_inspected: ClassVar[bool] = True

    @abstractmethod
    def build(self, model: Model) -> bbh.Posterior[Any]:
        """The posterior, not trained yet."""

    def check(self) -> None:  # noqa: B027 - most methods accept all values
        """Raises if a setting has a value that cannot work."""

    def num_parameters(self, model: Model, shapes: Shapes) -> int:
        """Numbers that training adjusts.

        Args:
            model: The model that the posterior would be built for.
            shapes: Shapes of its Bayesian parameters.
        """
        return count(self.build(model))

    @property
    def layer_dropout(self) -> float | None:
        """Rate of dropout layers that the network itself needs; None for no such layers."""
        return None

    @property
    def warm_epochs(self) -> int:
        """Epochs of MAP training; the method then starts around the weights found."""
        return 0

    @property
    def num_starts(self) -> int:
        """How many MAP estimates a warm start finds; the members of a mixture have one each."""
        return 1

    @property
    def likelihood_draws(self) -> int | None:
        """How many of a training step's weight draws see the batch; None for all."""
        return None

    @property
    def unstorable(self) -> str:
        """The setting that no stored file could describe, as ``name=value``; empty if none is."""
        return ""


@dataclass(frozen=True)
class Reference(Method):
    """What other methods are measured against. It is known, and nothing is trained.

    It does not depend on a seed, so a command runs it once, whatever seeds are asked for.
    """

    is_trained = False
    can_be_inspected = False

    def build(self, model: Model) -> bbh.Posterior[Any]:
        """Raises: there is no posterior over weights to build."""
        raise ConfigError(f"{self.word} is a reference for other methods: it cannot be trained.")

    def num_parameters(self, model: Model, shapes: Shapes) -> int:
        """Zero, since nothing is trained."""
        return 0


@dataclass(frozen=True)
class WithDivergence(Method):
    """Methods whose complexity is a divergence, estimated from draws or in closed form.

    Attributes:
        warm_start_epochs: First train MAP weights for this many epochs, and start around them; 0
            starts from a fresh network.
        num_samples: Weight draws per training step.
        likelihood_samples: How many of them enter the likelihood; 0 for all.
        divergence: closed_form, nearest_neighbour, joint, entropy, joint_entropy, adversarial, or
            flattened for the one of the published toy figure.
        prior_samples: Prior draws per step for nearest_neighbour and joint; 0 for num_samples.
        neighbours: The k of the nearest-neighbour entropy estimate; 0 for the largest that the
            number of draws allows.
        critic_steps: Steps of the adversarial divergence's critic per training step.
    """

    warm_start_epochs: int = 0
    num_samples: int = 1
    likelihood_samples: int = 0
    divergence: str = "closed_form"
    prior_samples: int = 0
    neighbours: int = 3
    critic_steps: int = 5

    def check(self) -> None:
        """Raises for an unknown divergence, or one that needs more draws."""
        check_num_samples(self.make_divergence(), self.num_samples)

    def make_divergence(self) -> divergences.Divergence:
        """The divergence by its name."""
        return choose("divergence", self.divergence, _DIVERGENCES)(self)

    @property
    def warm_epochs(self) -> int:
        """The setting ``warm_start_epochs``."""
        return self.warm_start_epochs

    @property
    def likelihood_draws(self) -> int | None:
        """The setting ``likelihood_samples``, where 0 means all."""
        return self.likelihood_samples or self.num_samples

    @property
    def unstorable(self) -> str:
        """The setting ``divergence``, if it is not one of the library's."""
        return f"divergence={_FLATTENED}" if self.divergence == _FLATTENED else ""


def count(module: nn.Module) -> int:
    """How many numbers a module's parameters hold."""
    return sum(parameter.numel() for parameter in module.parameters())
