"""How much memory a computation needs, measured on a small instance of it."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(compute: Callable[[], object]) -> int:
    """Largest number of bytes that live at once in tensors made by ``compute``.

    >>> peak_bytes(lambda: (torch.zeros(1000) + 1).sum())
    8000
    """
    mode = _LiveBytes()
    with torch.no_grad(), mode:
        compute()
    return mode.peak


class _LiveBytes(TorchDispatchMode):
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
