"""Keeps some of the examples that a loader yields while they are used for something else."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from torch import Tensor

from bbh.batches import Batch, as_batch, copied, count, cut, first_tensor, num_bytes

# The most bytes that kept examples take.
_BYTES = 64 * 2**20


class Passing:
    """Copies of examples from all over the latest pass through a loader.

    They are taken from batches that something else reads, so the loader's random numbers and its
    state are the same as without. The examples come from batches at equal distances, since a loader
    may yield them sorted.

    Args:
        limit: About how many examples to keep.
        spread: The number of batches they come from, if there are as many.
        with_inputs: Whether to keep inputs too, and not only targets.

    Attributes:
        batches: The parts that were kept.
    """

    def __init__(self, limit: int, spread: int, *, with_inputs: bool = True):
        self.batches: list[Batch] = []
        self._limit = limit
        self._spread = spread
        self._with_inputs = with_inputs

    def through(self, loader: Iterable[Any], length: int | None) -> Iterator[Any]:
        """The loader's batches as they are, while examples of them are kept.

        Args:
            loader: Anything that yields batches.
            length: The number of its batches; None if it is not known, and then all examples come
                from the first batches.
        """
        self.batches = []
        number = length or self._spread
        distance = -(-number // self._spread)
        per_batch = -(-self._limit * distance // number)
        kept_bytes = 0
        for index, batch in enumerate(loader):
            wanted = index % distance == 0 and len(self.batches) < self._spread
            if wanted and kept_bytes < _BYTES:
                # What cannot be cut is no reason to stop training.
                with suppress(Exception):
                    part = self._part(as_batch(batch), per_batch)
                    kept_bytes += num_bytes(part)
                    self.batches.append(part)
            yield batch

    def targets(self) -> list[Tensor]:
        """The targets that were kept, in parts."""
        return [batch.targets for batch in self.batches]

    def _part(self, batch: Batch, examples: int) -> Batch:
        inputs = batch.inputs if self._with_inputs else batch.targets
        return copied(_cut(Batch(inputs, batch.targets, batch.weights), 0, examples))

    def in_groups(self, number: int) -> list[list[Batch]]:
        """The examples in at most ``number`` groups of about equal size."""
        total = sum(count(batch.inputs) for batch in self.batches)
        size = max(1, -(-total // number))
        parts = [
            _cut(batch, first, first + size)
            for batch in self.batches
            for first in range(0, count(batch.inputs), size)
        ]
        groups: list[list[Batch]] = [[] for _ in range(number)]
        sizes = [0] * number
        for part in sorted(parts, key=lambda one: count(one.inputs), reverse=True):
            smallest = sizes.index(min(sizes))
            groups[smallest].append(part)
            sizes[smallest] += count(part.inputs)
        return [group for group in groups if group]


def _cut(batch: Batch, first: int, last: int) -> Batch:
    if first_tensor(batch.inputs) is None:  # a packed sequence or a graph cannot be cut
        return batch
    weights = None if batch.weights is None else batch.weights[first:last]
    return Batch(cut(batch.inputs, first, last), batch.targets[first:last], weights)
