"""What every description of a generator has: its size, known before it is built, and ``build``."""

import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

from bbh.generators.module import GeneratorModule
from bbh.network import fan_in
from bbh.noise import GaussianNoise
from bbh.samples import Params, Shapes, size

logger = logging.getLogger("bbh")

# Copies of every parameter in training: its value, its gradient and Adam's two moments.
_TRAINING_COPIES = 4
_BYTES = 4
# Above this number of generator parameters per weight, the size is logged as a warning.
_BLOW_UP = 100


class Generator(ABC):
    """Describes a generator; ``num_parameters`` and ``make`` are to write."""

    @abstractmethod
    def num_parameters(self, shapes: Shapes, noise_dim: int) -> int:
        """The number of parameters of the generator, without building it.

        Args:
            shapes: The tensors to generate.
            noise_dim: How many numbers the generator gets as noise (``GaussianNoise.num_inputs``).
        """

    @abstractmethod
    def make(self, values: Params, noise: GaussianNoise) -> GeneratorModule:
        """Makes the generator, initialised from the network's own weights ``values``."""

    @property
    def multiplications_per_weight(self) -> int | None:
        """How many products are summed up for a weight of a draw; None if that is not known."""
        return None

    def describe(self, shapes: Shapes, noise_dim: int) -> str:
        """One line about the generator's size, the memory to train it, and what a draw costs."""
        parameters, weights = self.num_parameters(shapes, noise_dim), size(shapes)
        memory = parameters * _BYTES * _TRAINING_COPIES / 2**30
        number = self.multiplications_per_weight
        # A dense layer multiplies each of its weights once for every example.
        examples = f"{number} examples cost" if number != 1 else "one example costs"
        cost = "" if number is None else f"; a draw costs what {examples} in dense layers"
        return (
            f"{type(self).__name__}: {parameters:,} generator parameters for {weights:,} weights "
            f"({parameters / weights:.1f} times), {memory:.2f} GiB to train with Adam{cost}"
        )

    def build(self, values: Params, noise: GaussianNoise) -> GeneratorModule:
        """Makes the generator, if it fits in this machine's memory; else raises ``MemoryError``.

        The generator's size is logged first, as a warning if it is far larger than the network.
        """
        shapes: Shapes = {name: value.shape for name, value in values.items()}
        summary = self.describe(shapes, noise.num_inputs)
        parameters = self.num_parameters(shapes, noise.num_inputs)
        _refuse_if_too_large(parameters, summary)
        large = parameters > _BLOW_UP * size(shapes) and parameters > 10_000_000
        logger.log(logging.WARNING if large else logging.INFO, summary)
        return self.make(values, noise)


def fan_in_scale(names: Sequence[str], shapes: Shapes) -> float:
    """Root mean square of 1/√fan_in over the weights of these tensors."""
    sizes = {name: math.prod(shapes[name]) for name in names}
    squares = (number / fan_in(name, shapes) for name, number in sizes.items())
    return math.sqrt(sum(squares) / sum(sizes.values()))


def _refuse_if_too_large(parameters: int, summary: str) -> None:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if parameters * _BYTES > memory:
        raise MemoryError(
            f"{summary}; this machine has {memory / 2**30:.0f} GiB. Use "
            "bbh.generators.LowRank(), Sliced() or Single(), smaller hidden layers, or make fewer "
            "parameters Bayesian with bayesian=."
        )
