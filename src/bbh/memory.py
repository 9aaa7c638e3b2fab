"""Measures the memory that a computation needs, divides work to stay within a limit, keeps it."""

import functools
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# The largest number of examples per call: larger batches are no faster and use more cache.
LARGEST_BATCH = 1000
# A CPU is fastest when the memory of each piece of work fits into its cache.
_CACHE_BYTES = 16 * 2**20
# A little less than the largest block from which the GNU C library learns.
_LARGEST_BLOCK = 2**25 - 2**17


def peak_bytes(compute: Callable[[], object]) -> int:
    """Largest number of bytes that live at once in tensors made by ``compute``.

    >>> peak_bytes(lambda: (torch.zeros(1000) + 1).sum())
    8000
    """
    mode = LiveBytes()
    with torch.no_grad(), _unfused_attention(), mode:
        compute()
    return mode.peak


@contextmanager
def _unfused_attention() -> Generator[None]:
    """Within this context transformer layers run as many operations, whose tensors are counted.

    As the single operation that they are fused to on a CPU, they hide what it allocates.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


@functools.cache
def keep_freed_memory() -> None:
    """Lets the process keep freed memory, usually up to 64 MiB of it, and use it again.

    Every training step, and every part of a prediction, allocates and frees the same tensors. The
    GNU C library returns freed memory to the system, which hands it out again page by page, each
    filled with zeros: that takes up to a third of a step. The library stops returning blocks of a
    size once it has seen one of that size freed (``man mallopt``, M_MMAP_THRESHOLD), so this frees
    a large one, which was never written to. Other C libraries are not affected.
    """
    torch.empty(_LARGEST_BLOCK, dtype=torch.uint8, device="cpu")


def by_rows(compute: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """``compute`` of some rows of ``values`` after the other, so that its own tensors stay small.

    >>> by_rows(lambda rows: rows.exp().sum(1), torch.zeros(3, 2))
    tensor([2., 2., 2.])
    """
    if torch.compiler.is_compiling():
        return compute(values)  # a program for any number of rows cannot ask how many there are
    rows = max(1, _CACHE_BYTES // 4 // max(1, values[:1].nbytes))
    if len(values) <= rows:
        return compute(values)
    first = compute(values[:rows])
    joined = first.new_empty((len(values), *first.shape[1:]))
    joined[:rows] = first
    for start in range(rows, len(values), rows):
        joined[start : start + rows] = compute(values[start : start + rows])
    return joined


def tiling(
    per_example: int,
    num_examples: int,
    limit: int,
    device: torch.device,
    largest_batch: int = LARGEST_BATCH,
) -> tuple[int, int]:
    """The number of examples and the number of weight draws to process at once, at least one each.

    >>> tiling(10, 4, 100, torch.device("cpu"))
    (10, 2)

    Args:
        per_example: Bytes that one example takes with one draw.
        num_examples: The number of examples. If fewer than fit, there is room for more draws.
        limit: Bytes that all examples and draws in progress may take together.
        device: The device on which they are processed.
        largest_batch: The largest number of examples at once, however small they are.
    """
    work = min(limit, _CACHE_BYTES) if device.type == "cpu" else limit
    examples = max(1, min(largest_batch, work // per_example))
    return examples, max(1, work // (per_example * min(examples, num_examples)))


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors made within this mode that are still alive.

    A storage counts from its first tensor until its last tensor is freed.
    """

    def __init__(self):
        super().__init__()
        self.peak = 0
        self._live = 0
        self._holders: dict[int, int] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs the operation and counts the tensors it made."""
        known = {_address(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._hold(leaf, known)
        return result

    def _hold(self, tensor: Tensor, known: set[int]) -> None:
        address, size = _address(tensor), tensor.untyped_storage().nbytes()
        if address in known and address not in self._holders:
            return  # a view of a tensor made before this mode began
        if address not in self._holders:
            self._live += size
            self.peak = max(self.peak, self._live)
        self._holders[address] = self._holders.get(address, 0) + 1
        weakref.finalize(tensor, self._release, address, size)

    def _release(self, address: int, size: int) -> None:
        self._holders[address] -= 1
        if not self._holders[address]:
            del self._holders[address]
            self._live -= size


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
