"""Results of many examples, written into memory that is allocated once."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bbh.likelihoods import Sums


class Results:
    """Sums over the draws for every example, and the outputs of every draw if they are kept.

    Args:
        num_draws: The number of weight draws.
        at_least: The number of examples that there certainly are.
        room: The number of examples to make room for.
        home: The device to keep results on.
        check_kept: Raises if this number of bytes is too much for kept outputs; None if outputs are
            not kept.
    """

    def __init__(
        self,
        num_draws: int,
        at_least: int,
        room: int,
        home: torch.device,
        check_kept: Callable[[int], None] | None,
    ):
        self._num_draws = num_draws
        self._at_least = at_least
        self._room = room
        self._home = home
        self._check_kept = check_kept
        self._rows: dict[str, Rows] = {}
        self._outputs = Rows(room, axis=1)
        self._batch_sums: Sums = {}
        self._first_example = 0
        self._first_draw = 0
        self._batch_size = 0

    def add(self, outputs: Tensor, sums: Sums) -> None:
        """Takes the outputs [S, B, …] of some draws for the present batch, and their sums."""
        number, self._batch_size = outputs.shape[:2]
        for name, value in sums.items():
            known = self._batch_sums.get(name)
            self._batch_sums[name] = value if known is None else known + value
        if self._check_kept is not None:
            shape = (self._num_draws, *outputs.shape[1:])
            rows = max(self._first_example + self._batch_size, self._at_least)
            one = outputs.element_size() * self._num_draws * math.prod(outputs.shape[2:])
            self._check_kept(one * rows)
            place = self._outputs.place(self._first_example, shape, outputs, self._home)
            place[self._first_draw : self._first_draw + number].copy_(outputs)
        self._first_draw += number

    def end_batch(self) -> None:
        """Keeps the sums of the present batch; the next draws belong to another one."""
        for name, value in self._batch_sums.items():
            rows = self._rows.setdefault(name, Rows(self._room))
            rows.place(self._first_example, value.shape, value, self._home).copy_(value)
        self._batch_sums = {}
        self._first_example += self._batch_size
        self._first_draw = 0

    def sums(self) -> Sums:
        """The sums for all examples, by their names."""
        return {name: rows.filled() for name, rows in self._rows.items()}

    def outputs(self) -> Tensor | None:
        """The outputs of all draws for all examples; None if they are not kept."""
        return None if self._check_kept is None else self._outputs.filled()


class Rows:
    """A tensor with one row for each example, filled from the first row to the last.

    Results that were kept one by one, each allocated between the large buffers of a forward pass,
    would keep the allocator from using the memory of these buffers again: a process would grow with
    every batch, far beyond what its tensors take.

    Args:
        expected: The number of rows to make room for. Memory that is never written to is not taken
            from the system. If there are more rows, the room doubles.
        axis: The axis of the tensor that counts the rows.
    """

    def __init__(self, expected: int, axis: int = 0):
        self._room = expected
        self._axis = axis
        self._values = torch.empty(0)
        self._filled = 0

    def place(self, first: int, shape: tuple[int, ...], like: Tensor, home: torch.device) -> Tensor:
        """The part of the tensor for the rows from ``first`` on, to be written to.

        Args:
            first: The first of these rows.
            shape: The shape of the part, with the number of its rows on the axis that counts them.
            like: A tensor of the same type.
            home: The device to keep the rows on.
        """
        last = first + shape[self._axis]
        if not self._filled or last > self._room:
            self._make_room(last, shape, like, home)
        self._filled = max(self._filled, last)
        return self._values.narrow(self._axis, first, shape[self._axis])

    def filled(self) -> Tensor:
        """All rows that were written."""
        if self._filled == self._room:
            return self._values
        return self._values.narrow(self._axis, 0, self._filled)

    def _make_room(
        self, last: int, shape: tuple[int, ...], like: Tensor, home: torch.device
    ) -> None:
        before = self._values.narrow(self._axis, 0, self._filled) if self._filled else None
        if last > self._room:
            self._room = max(last, 2 * self._room)
        whole = list(shape)
        whole[self._axis] = self._room
        self._values = torch.empty(whole, dtype=like.dtype, device=home)
        if before is not None:
            self._values.narrow(self._axis, 0, self._filled).copy_(before)
