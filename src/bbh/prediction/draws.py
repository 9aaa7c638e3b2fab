"""Weight draws to use again and again, within a memory bound, and the mode to use them in."""

import copy
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bbh.posterior import Posterior
from bbh.prediction.memory import peak_bytes
from bbh.samples import Samples, size


class Draws:
    """The same weight draws for every batch: kept if they fit, else made again from their seeds.

    Args:
        posterior: Where they come from.
        num_samples: How many; a distribution with fewer different ones gives each once.
        samples: Draws to use instead of fresh ones.
        limit: Bytes that draws may take.
    """

    def __init__(
        self,
        posterior: Posterior[Any],
        num_samples: int,
        samples: Mapping[str, Tensor] | None,
        limit: int,
    ):
        self._posterior = posterior
        self._kept: list[Samples] | None = None
        self._parts: list[tuple[int, int]] = []
        if samples is not None:
            self._kept = [Samples.of(samples).values_only()]
            self.total = self._kept[0].num_samples
            return
        if num_samples < 1:
            raise ValueError(f"num_samples={num_samples}: draw at least one.")
        self.total = posterior.weights.num_useful(num_samples)
        if posterior.weights.num_distinct is not None:
            # Explicit members are in memory already; drawing them apart could repeat some.
            self._kept = [posterior.sample(self.total).values_only()]
            return
        element = next(posterior.weights.parameters()).element_size()
        per_draw = size(posterior.weights.shapes) * element
        part = max(1, min(self.total, limit // max(1, peak_bytes(lambda: posterior.sample(1)))))
        seeds = torch.randint(2**62, (self.total,)).tolist()
        self._parts = [
            (min(part, self.total - first), seeds[first]) for first in range(0, self.total, part)
        ]
        if per_draw * self.total <= limit:
            self._kept = [self._make(*one) for one in self._parts]

    def at_most(self, number: int) -> Iterator[Samples]:
        """All draws, in pieces of at most ``number``."""
        for part in self._kept or (self._make(*one) for one in self._parts):
            for first in range(0, part.num_samples, number):
                yield part.take(slice(first, first + number))

    def first(self) -> Samples:
        """A single draw, to measure with.

        In memory of its own: copies that a loop makes of weights at odd addresses would be taken
        for what an example needs, and a megabyte more for each of thousands leaves room for few.
        """
        draw = next(self.at_most(1))
        return Samples({name: value.clone() for name, value in draw.items()})

    def renewed(self) -> "Draws":
        """As many fresh draws, divided alike; where there are only so many, the same ones."""
        other = copy.copy(self)
        if self._parts:
            seeds = torch.randint(2**62, (len(self._parts),)).tolist()
            sizes = (number for number, _ in self._parts)
            other._parts = list(zip(sizes, seeds, strict=True))
            other._kept = self._kept and [other._make(*one) for one in other._parts]
        return other

    def _make(self, number: int, seed: int) -> Samples:
        with seeded(seed, self._posterior.device):
            return self._posterior.sample(number).values_only()


@contextmanager
def seeded(seed: int, device: torch.device) -> Generator[None]:
    """Random numbers from this seed meanwhile; those outside go on as if nothing had been."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        # Not torch.manual_seed, which would seed GPUs that are none of our business.
        torch.default_generator.manual_seed(seed)
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def evaluation_mode(posterior: Posterior[Any]) -> Generator[None]:
    """Puts the posterior into evaluation mode meanwhile."""
    training = posterior.training
    posterior.eval()
    try:
        yield
    finally:
        posterior.train(training)
