"""Chooses training inputs that a posterior keeps, while they pass through the first epoch."""

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree  # pyright: ignore[reportPrivateUsage]

from bbh.batches import Inputs, copied, count, cut, divisible, inputs_of, move, num_bytes
from bbh.posterior import Posterior

logger = logging.getLogger("bbh")

# The mean of n examples is off by 1/√n of their standard deviation, and their variance by √(2/n):
# 4 and 6 per cent for this number. Convolutions have many more values.
EXAMPLES = 512
# The largest number of bytes, for large images: they have many values each.
_BYTES = 64 * 2**20
# Gives all processes an object of the first one.
Broadcast = Callable[[Any], Any]
# Examples are taken in pieces of neighbours: equal parts of a batch, of this size at most.
_PIECE = 32


class ReferenceKeeper:
    """Watches the first epoch and keeps some of its inputs as the posterior's reference.

    Every piece of the epoch is equally likely to be kept (reservoir sampling), since a loader may
    not shuffle. The choice has a random generator of its own, and inputs are copied from batches
    that training reads: the loader and the random numbers of training are the same as without.

    Args:
        posterior: The posterior that is trained.
        examples: The largest number of examples to keep; 0 leaves the posterior's reference alone.
        done: Whether the epoch was watched earlier, in a run that is resumed.
    """

    def __init__(self, posterior: Posterior[Any], examples: int, *, done: bool):
        if examples < 0 or examples == 1:
            raise ValueError(
                f"batch_norm_examples={examples}: statistics take two examples or more; 0 for none."
            )
        self._posterior = posterior
        self._examples = examples
        self._done = done or not examples or not posterior.needs_reference()
        self._random = random.Random(0)
        self._seen = 0
        self._room = 0
        self._pieces: list[Inputs] = []

    def watch(self, loader: Iterable[Any]) -> Iterable[Any]:
        """The same batches; in the first epoch some of their inputs are remembered."""
        return loader if self._done else self._watched(loader)

    def see(self, batch: Any) -> None:
        """Remembers some of a batch's inputs, in the first epoch."""
        for piece in () if self._done else self._cut(inputs_of(batch)):
            self._offer(piece)

    def end_epoch(self, broadcast: Broadcast | None = None) -> None:
        """After the first epoch, hands the inputs to the posterior; there are no more to come."""
        self.hand_over(broadcast)
        self._done, self._pieces = True, []

    def hand_over(self, broadcast: Broadcast | None = None) -> None:
        """Hands the inputs of the first epoch so far to the posterior, the same in all processes.

        Args:
            broadcast: Gives all processes an object of the first one; None if there is only one.
        """
        if self._done:
            return
        pieces = self._pieces
        if broadcast is not None:
            pieces = broadcast([move(piece, torch.device("cpu")) for piece in pieces])
        device = self._posterior.device
        try:
            self._posterior.reference.keep([move(one, device) for one in _joined(pieces)])
        except TypeError as error:
            logger.warning(
                "predictions will use batch-norm statistics that all weight draws share: %s", error
            )

    def _watched(self, loader: Iterable[Any]) -> Iterator[Any]:
        for batch in loader:
            self.see(batch)
            yield batch

    def _cut(self, inputs: Inputs) -> Iterator[Inputs]:
        if not divisible(inputs):
            yield inputs
            return
        number = count(inputs)
        fitting = _BYTES * number // max(1, num_bytes(inputs))
        pieces = -(-number // max(2, min(_PIECE, self._examples, fitting)))
        size = -(-number // pieces)
        for first in range(0, number, size):
            yield cut(inputs, first, first + size)

    def _offer(self, piece: Inputs) -> None:
        """Remembers the piece if there is room, or by chance in place of another."""
        if not self._seen:
            fitting = _BYTES // max(1, num_bytes(piece))
            self._room = max(1, min(fitting, self._examples // max(1, _num_examples(piece))))
        self._seen += 1
        if len(self._pieces) < self._room:
            self._pieces.append(copied(piece))
            return
        place = self._random.randrange(self._seen)
        if place < self._room:
            self._pieces[place] = copied(piece)


def _num_examples(piece: Inputs) -> int:
    return int(piece.batch_sizes[0]) if isinstance(piece, PackedSequence) else count(piece)


def _joined(pieces: list[Inputs]) -> list[Inputs]:
    """Joins pieces whose examples have the same shapes into one batch."""
    joined: list[Inputs] = []
    groups: dict[str, list[Inputs]] = {}
    for piece in pieces:
        if divisible(piece):
            groups.setdefault(_shapes(piece), []).append(piece)
        else:
            joined.append(piece)
    return joined + [pytree.tree_map(_row_by_row, *group) for group in groups.values()]


def _shapes(piece: Inputs) -> str:
    """The arrangement of the inputs, and everything about their tensors but the examples."""
    leaves, arrangement = pytree.tree_flatten(piece)
    return repr(
        (arrangement, [(x.shape[1:], x.dtype) if isinstance(x, Tensor) else x for x in leaves])
    )


def _row_by_row(first: Any, *others: Any) -> Any:
    return torch.cat([first, *others]) if isinstance(first, Tensor) else first
