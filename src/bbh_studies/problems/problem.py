"""A problem: data, network and likelihood, the same for all methods that are compared on it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, SupportsInt

from torch import Tensor, nn

from bbh.likelihoods import Likelihood

# Trains, measures and records one run: see ``Study.runner``.
Runner = Callable[..., Any]


@dataclass(frozen=True)
class Problem(ABC):
    """A problem with its settings, which are its fields.

    Attributes:
        prediction_samples: Weight draws for evaluation.
        columns: Explains the columns of the table of results in a terminal.
        attack_sizes: Sizes of attacks, rising from 0: the largest change of a pixel, whose values
            are from 0 to 1. Empty if nothing is attacked.
        class_names: Names of the classes; empty if they are digits, or if there are none.
    """

    columns: ClassVar[str]
    attack_sizes: ClassVar[tuple[float, ...]] = ()
    class_names: ClassVar[tuple[str, ...]] = ()
    prediction_samples: int = 100

    @property
    def default_seeds(self) -> Sequence[int]:
        """The seeds of a command that names none."""
        return (0,)

    @property
    def knows_reference(self) -> bool:
        """Whether a study's reference is known for these settings."""
        return True

    @abstractmethod
    def make_network(self, dropout: float | None = None) -> nn.Module:
        """A freshly initialised network, with dropout layers of that rate if it has a place."""

    @abstractmethod
    def likelihood(self) -> Likelihood[Any]:
        """How targets arise from the network's outputs."""

    @abstractmethod
    def count_steps(self, batch_size: int) -> int:
        """Optimiser steps in a pass over the training data, without reading them."""

    @abstractmethod
    def runner(self, folder: Path | None) -> Runner:
        """Reads the data once, and returns a function that trains, measures and records a run.

        Args:
            folder: Where the files are; None for the user's folder or the cache.
        """

    def attacker(self, folder: Path | None) -> Runner:
        """Reads the data once, and returns a function that attacks and records a posterior."""
        raise NotImplementedError(f"nothing attacks {type(self).__name__}.")

    @abstractmethod
    def inputs(self, folder: Path | None) -> Tensor:
        """Inputs on which the functions that a posterior draws are compared."""

    def check(self) -> None:  # noqa: B027 - most problems accept all values
        """Raises if a setting has a value that cannot work."""

    def class_name(self, label: SupportsInt) -> str:
        """The name of a class, as people read it."""
        return self.class_names[int(label)] if self.class_names else str(label)
