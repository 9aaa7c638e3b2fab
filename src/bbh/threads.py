"""One thread for tiny work, where several would wait for each other longer than they compute.

Torch divides every operation among all cores. A small network's operations take microseconds, and
at the end of each the threads wait for the last of them: if another program has its core, that is
as long as the other program's turn. With one thread there is nothing to wait for, and results of
tiny work do not depend on the number of cores either.
"""

from collections.abc import Generator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from bbh import checks
from bbh.batches import Inputs, first_tensor
from bbh.posterior import Posterior
from bbh.samples import size

# Multiplications and additions that one core does in about a millisecond. What decides is a number
# that is known in advance, and not a clock: the same program takes the same threads in every run.
TINY_WORK = 5 * 10**6


@contextmanager
def threads_for(work: int, device: torch.device, num_threads: int | None) -> Generator[None]:
    """Within this context torch computes with a number of threads that suits the work.

    Args:
        work: The number of multiplications, more or less.
        device: Where they are done. Only a CPU has threads.
        num_threads: A number that the user asked for; None takes one thread for tiny work, and
            leaves torch's own number (``torch.set_num_threads``) for all else.
    """
    if num_threads is not None:
        checks.whole("num_threads", num_threads, 1, "compute with at least one thread")
    before = torch.get_num_threads()
    wanted = num_threads or (1 if work <= TINY_WORK else before)
    if device.type != "cpu" or wanted == before:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Work:
    """How much there is to compute with a posterior: multiplications, more or less.

    Every draw makes all weights from the distribution's own parameters, and every weight meets
    every row, word or pixel of a batch. That is exact for fully connected layers, and too much for
    convolutions, which are then not called tiny.

    Args:
        posterior: The posterior.
    """

    def __init__(self, posterior: Posterior[Any]):
        self._drawing = _numel(posterior.weights)
        # The weights that are drawn, and those that belong to the network and are not.
        self._network = size(posterior.weights.shapes) + _numel(posterior) - self._drawing

    def __call__(self, num_draws: int, inputs: Inputs = None) -> int:
        """The work of some draws, and of putting the inputs through them if there are any."""
        positions = 0 if inputs is None else num_positions(inputs)
        return num_draws * (self._drawing + self._network * positions)


def num_positions(inputs: Inputs) -> int:
    """How often a batch's examples meet a weight: once per row, word or pixel.

    >>> num_positions(torch.zeros(50, 64)), num_positions(torch.zeros(50, 1, 28, 28))
    (50, 1400)
    >>> num_positions(torch.zeros(50, 20, dtype=torch.long))  # indices of words
    1000
    """
    tensor = first_tensor(inputs)
    if tensor is None:
        return TINY_WORK  # a graph, say: its size is not known, so it is not called tiny
    return _positions(tensor)


def _numel(module: torch.nn.Module) -> int:
    return sum(one.numel() for one in chain(module.parameters(), module.buffers()))


def _positions(tensor: Tensor) -> int:
    if not tensor.is_floating_point() or tensor.dim() < 2:
        return tensor.numel()
    return tensor.numel() // max(1, tensor.shape[-1])
