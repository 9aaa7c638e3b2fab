"""Weight draws that can be used repeatedly within a memory limit, and the evaluation mode."""

import copy
import itertools
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bbh import checks
from bbh.memory import peak_bytes
from bbh.posterior import Posterior
from bbh.samples import Samples, size

# Bytes of the weights that are drawn at once on a CPU: they are still in its cache when they meet
# the inputs, and the next ones take their place in memory.
_PART_BYTES = 4 * 2**20
# Draws that make such a part worth while: larger networks have more to do with every single draw.
_ENOUGH = 8


class Draws:
    """The same weight draws for every batch: kept if they fit, else made again from their seeds.

    Args:
        posterior: The posterior to draw from.
        num_samples: The number of draws. A distribution with fewer different draws gives each once.
        samples: Draws to use instead of new ones.
        limit: The largest number of bytes that the draws may take, and the activations while
            batch-norm statistics of the draws are computed.
        later: Whether to make each part of the draws when it is first asked for. The posterior must
            not change until then.
    """

    def __init__(
        self,
        posterior: Posterior[Any],
        num_samples: int,
        samples: Mapping[str, Tensor] | None,
        limit: int,
        *,
        later: bool = False,
    ):
        self._posterior = posterior
        self._limit = limit
        # The parts that are kept, by their numbers.
        self._kept: dict[int, Samples] = {}
        # The number of draws of every part, and its seed.
        self._parts: list[tuple[int, int]] = []
        self._fits = True
        if samples is not None:
            given = Samples.of(samples).values_only()
            self._kept[0] = posterior.with_statistics(given, limit)
            self.total = self._kept[0].num_samples
            return
        checks.whole("num_samples", num_samples, 1, "draw at least one")
        self.total = posterior.weights.num_useful(num_samples)
        if posterior.weights.num_distinct is not None:
            # The members of an ensemble are in memory already, and drawing them in several parts
            # could repeat some members.
            self._kept[0] = posterior.sample(self.total, memory_limit=limit).values_only()
            return
        tensors = itertools.chain(posterior.weights.parameters(), posterior.weights.buffers())
        element = next((one.element_size() for one in tensors if one.is_floating_point()), 4)
        per_draw = size(posterior.weights.shapes) * element
        drawing = peak_bytes(lambda: posterior.weights.sample(1))
        part = limit // max(1, drawing)
        if posterior.device.type == "cpu" and _ENOUGH * per_draw <= _PART_BYTES:
            # Drawing reads the distribution's own parameters, once for every part: the draws of a
            # part should be no less to write than these are to read.
            own = sum(one.nbytes for one in posterior.weights.parameters())
            part = min(part, max(_PART_BYTES, own) // max(1, per_draw))
        # Each part has as many draws of one member of a mixture as of another.
        part = min(self.total, posterior.weights.even(part))
        seeds = torch.randint(2**62, (self.total,)).tolist()
        self._parts = [
            (min(part, self.total - first), seeds[first]) for first in range(0, self.total, part)
        ]
        self._fits = per_draw * self.total <= limit
        if self._fits and not later:
            self._make_all()

    def at_most(self, number: int, *, again: bool = True) -> Iterator[Samples]:
        """All draws, in pieces of at most ``number``.

        Args:
            number: The largest number of draws in a piece.
            again: Whether the draws will be asked for again; if not, none is kept.
        """
        for index in range(max(1, len(self._parts))):
            part = self._part(index, again)
            for first in range(0, part.num_samples, number):
                yield part.take(slice(first, first + number))

    def first(self) -> Samples:
        """A single draw, for measuring how much memory an example needs.

        The draw is cloned, so that its tensors are aligned in memory. A loop copies weights that
        are not, and the measurement would count these copies as part of every example. A megabyte
        too much per example, for thousands of examples, would make batches far too small.
        """
        draw = next(self.at_most(1))
        return Samples({name: value.clone() for name, value in draw.items()})

    def renewed(self) -> "Draws":
        """The same number of new draws, in parts of the same sizes.

        If the draws were given, or the distribution has only finitely many, they stay the same.
        """
        other = copy.copy(self)
        if self._parts:
            seeds = torch.randint(2**62, (len(self._parts),)).tolist()
            sizes = (number for number, _ in self._parts)
            other._parts = list(zip(sizes, seeds, strict=True))
            other._kept = {}
            if self._kept:
                other._make_all()
        return other

    def _make_all(self) -> None:
        for index in range(len(self._parts)):
            self._part(index, again=True)

    def _part(self, index: int, again: bool) -> Samples:
        """One part of the draws, kept if it will be needed again and all of them fit."""
        if not self._parts:
            return self._kept[index]  # not made here
        found = self._kept.pop(index, None)
        if found is None:
            found = self._make(*self._parts[index])
        if again and self._fits:
            self._kept[index] = found
        return found

    def _make(self, number: int, seed: int) -> Samples:
        with seeded(seed, self._posterior.device):
            return self._posterior.sample(number, memory_limit=self._limit).values_only()


@contextmanager
def seeded(seed: int, device: torch.device) -> Generator[None]:
    """Within this context random numbers start from ``seed``; outside they are not affected."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        # Not torch.manual_seed: it would also seed all other GPUs.
        torch.default_generator.manual_seed(seed)
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def evaluation_mode(posterior: Posterior[Any]) -> Generator[None]:
    """Within this context the posterior is in evaluation mode."""
    training = posterior.training
    posterior.eval()
    try:
        yield
    finally:
        posterior.train(training)
