"""How much memory a computation needs, measured on a small instance, and how to divide it."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# More examples per call than this gain no speed and cost cache.
LARGEST_BATCH = 1000
# On a CPU work goes fastest in pieces that stay in its cache.
_CACHE_BYTES = 16 * 2**20


def peak_bytes(compute: Callable[[], object]) -> int:
    """Largest number of bytes that live at once in tensors made by ``compute``.

    >>> peak_bytes(lambda: (torch.zeros(1000) + 1).sum())
    8000
    """
    mode = LiveBytes()
    with torch.no_grad(), mode:
        compute()
    return mode.peak


def tiling(
    per_example: int,
    num_examples: int,
    limit: int,
    device: torch.device,
    largest_batch: int = LARGEST_BATCH,
) -> tuple[int, int]:
    """How many examples, and how many weight draws, to work on at once; at least one of each.

    >>> tiling(10, 4, 100, torch.device("cpu"))
    (10, 2)

    Args:
        per_example: Bytes that one example takes with one draw.
        num_examples: How many there are; fewer than fit leave room for more draws.
        limit: Bytes for all of them.
        device: Where they are.
        largest_batch: Examples at once, however small they are.
    """
    work = min(limit, _CACHE_BYTES) if device.type == "cpu" else limit
    examples = max(1, min(largest_batch, work // per_example))
    return examples, max(1, work // (per_example * min(examples, num_examples)))


class LiveBytes(TorchDispatchMode):
    """Follows every storage from its first tensor to the death of its last."""

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
        """Runs the operation and counts what it made."""
        known = {_address(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._hold(leaf, known)
        return result

    def _hold(self, tensor: Tensor, known: set[int]) -> None:
        address, size = _address(tensor), tensor.untyped_storage().nbytes()
        if address in known and address not in self._holders:
            return  # a view of something that was there before
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
