"""Frozen parameters: what a posterior uses of a network without copying, training or storing it."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bbh.samples import Params, TensorTable

# The number of values of each tensor that its digest is made from, at equal distances. Another
# model differs nearly everywhere, and reading all of a large one would take seconds.
_VALUES = 1_000
_BYTES = 8


class Frozen(nn.Module):
    """Tensors that belong to the user's network, which the posterior shares with it.

    A large network may have a thousand times as many frozen parameters as trained ones, so they are
    neither copied nor stored. The module's state is a digest of each tensor. Loading a state checks
    that it was made with the same tensors, and says which are not.

    Args:
        tensors: The frozen parameters by name.
    """

    def __init__(self, tensors: Params):
        super().__init__()
        self.table = TensorTable(tensors, trainable=False, persistent=False)

    def forward(self) -> Params:
        """The tensors under their own names."""
        return self.table()

    def __len__(self) -> int:
        return len(list(self.table))

    def replace(self, values: Mapping[str, Tensor]) -> None:
        """Takes other values for some of the tensors; the network's own are not changed."""
        for name, value in values.items():
            self.table.replace(name, value.to(self.table[name].device))

    def state_names(self) -> list[str]:
        """The names that the tensors have among this module's buffers."""
        return [name for name, _ in self.named_buffers()]

    def digests(self) -> Tensor:
        """A few bytes for each tensor that depend on its type, shape and values."""
        rows = [list(_digest(value)) for value in self.table().values()]
        return torch.tensor(rows, dtype=torch.uint8)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        if len(self):
            destination[f"{prefix}digests"] = self.digests()

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key = f"{prefix}digests"
        if len(self) and key not in state_dict:
            missing_keys.append(key)
        elif len(self):
            if problem := self.difference(state_dict[key]):
                error_msgs.append(problem)
        elif key in state_dict:
            unexpected_keys.append(key)

    def difference(self, digests: Tensor) -> str | None:
        """Which tensors are not those that the digests were made from; None if all are."""
        names = list(self.table)
        if list(digests.shape) != [len(names), _BYTES]:
            return f"there are {len(names)} frozen parameters here, and {len(digests)} were stored"
        if empty := [name for name in names if self.table[name].is_meta]:
            return f"the frozen parameters have no values: {_some(empty)} on the meta device"
        same = (self.digests() == digests.cpu()).all(1).tolist()
        if other := [name for name, equal in zip(names, same, strict=True) if not equal]:
            return (
                f"{len(other)} of {len(names)} frozen parameters have other values than those that "
                f"were trained with: {_some(other)}. Take the same base model"
            )
        return None


def _digest(value: Tensor) -> bytes:
    """The first bytes of a SHA-256; the same on every device."""
    digest = hashlib.sha256(f"{value.dtype} {list(value.shape)}".encode())
    if not value.is_meta:
        flat = value.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // _VALUES)].cpu().contiguous()
        digest.update(some.view(torch.uint8).numpy().data)
    return digest.digest()[:_BYTES]


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
