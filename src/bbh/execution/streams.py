"""Runs work in parallel on a CUDA device, while a CUDA graph is being recorded."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bbh.batches import Inputs
from bbh.execution.base import Execution, Runnable
from bbh.samples import Samples

Result = TypeVar("Result")


class Fork(Generic[Result]):
    """Work that has a CUDA stream of its own, while a CUDA graph is being recorded.

    When the graph is replayed the work runs beside what was recorded before its result was asked
    for, and so does its backward pass: small kernels of one fill the gaps that those of the other
    leave. Outside of a recording the work is simply done.

    Args:
        work: What to do.
        used: Tensors or draws that it reads, other than parameters and buffers: their memory is
            given to nothing else while the work may still read it.
    """

    def __init__(self, work: Callable[[], Result], *used: Any):
        self._stream = None
        if not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
            self._result = work()
            return
        self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        for one in _tensors(used):
            one.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            self._result = work()

    def result(self) -> Result:
        """What the work has returned; the current stream waits for it."""
        if self._stream is not None:
            here = torch.cuda.current_stream()
            here.wait_stream(self._stream)
            for one in _tensors(self._result):
                one.record_stream(here)
        return self._result


@dataclass(frozen=True)
class Streams(Execution):
    """Runs every draw on its own CUDA stream, while a CUDA graph is being recorded.

    Draws that write to the same buffers would overwrite each other's values: ``Recorded`` uses
    streams only after it has checked that the draws write to none.
    """

    def run(
        self, network: Runnable, inputs: Inputs, samples: Samples, inputs_per_draw: bool
    ) -> Tensor:
        """Outputs of all draws, joined on the current stream."""
        call = network.prepare()
        forks: list[Fork[Tensor]] = []
        for index, setting in enumerate(network.settings(samples)):
            own = inputs[index] if inputs_per_draw else inputs
            forks.append(Fork(lambda own=own, one=setting: call(own, one), own, setting))
        return torch.stack([fork.result() for fork in forks])


def _tensors(values: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists and dictionaries, and in draws."""
    for leaf in tree_leaves(values):
        if isinstance(leaf, Samples):
            yield from leaf.held()
        elif isinstance(leaf, Tensor):
            yield leaf
