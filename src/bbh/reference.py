"""A reference batch: training inputs that a posterior keeps to compute batch-norm statistics."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bbh.batches import Inputs

_STRUCTURE = "structure"


class Reference(nn.Module):
    """Batches of inputs as a module's state, which moves, copies and saves like weights.

    The tensors are buffers. How they are arranged (tuples, dictionaries, packed sequences) is a
    buffer too, in JSON as bytes, so that the state is nothing but tensors. Unlike other modules it
    takes the number and the shapes of its buffers from the state that it loads.
    """

    def __init__(self):
        super().__init__()
        self._arranged: list[Any] = []

    def __bool__(self) -> bool:
        return bool(self._arranged)

    def keep(self, batches: Sequence[Inputs]) -> None:
        """Copies these batches of inputs, in place of those kept before.

        Raises:
            TypeError: The inputs hold something that is neither a tensor nor a simple value.
        """
        tensors: list[Tensor] = []

        def put(tensor: Tensor) -> int:
            tensors.append(tensor.detach().clone())
            return len(tensors) - 1

        arranged = [_described(inputs, put) for inputs in batches]
        state = {str(index): tensor for index, tensor in enumerate(tensors)}
        if arranged:
            state[_STRUCTURE] = torch.frombuffer(
                bytearray(json.dumps(arranged).encode()), dtype=torch.uint8
            )
        self._replace(state)

    def batches(self) -> list[Inputs]:
        """The batches, as they were given."""
        return [_rebuilt(one, lambda index: self._buffers[str(index)]) for one in self._arranged]

    def _replace(self, state: Mapping[str, Tensor]) -> None:
        self._buffers.clear()
        for name, value in state.items():
            self.register_buffer(name, value)
        text = bytes(state[_STRUCTURE].tolist()) if state else b"[]"
        self._arranged = json.loads(text)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *_: Any, **__: Any
    ) -> None:
        device = next((value.device for value in self.buffers()), None)
        found = {
            name.removeprefix(prefix): value.detach().to(device, copy=True)
            for name, value in state_dict.items()
            if name.startswith(prefix)
        }
        self._replace(found)


def _described(inputs: Inputs, put: Callable[[Tensor], int]) -> Any:
    """How the inputs are arranged, ready for JSON; ``put`` takes each tensor and numbers it."""
    if isinstance(inputs, Tensor):
        return {"tensor": put(inputs)}
    if isinstance(inputs, PackedSequence):
        return {"packed": [None if part is None else put(part) for part in inputs]}
    if isinstance(inputs, Mapping):
        known = cast(Mapping[Any, Any], inputs)
        if strange := [key for key in known if not isinstance(key, str)]:
            raise TypeError(f"inputs in a dictionary have names; {strange[0]!r} is no string.")
        return {"mapping": {key: _described(value, put) for key, value in known.items()}}
    if type(inputs) in (tuple, list):
        return {type(inputs).__name__: [_described(value, put) for value in inputs]}
    if inputs is None or isinstance(inputs, bool | int | float | str):
        return {"value": inputs}
    raise TypeError(
        f"a reference batch is made of tensors, and of tuples, lists, dictionaries and packed "
        f"sequences of them; it cannot hold a {type(inputs).__name__}."
    )


def _rebuilt(described: Any, get: Callable[[int], Tensor | None]) -> Inputs:
    ((kind, content),) = described.items()
    if kind == "tensor":
        return get(content)
    if kind == "packed":
        data, sizes, *orders = (None if part is None else get(part) for part in content)
        assert data is not None
        assert sizes is not None
        return PackedSequence(data, sizes.cpu(), *orders)  # the sizes are always on the CPU
    if kind == "mapping":
        return {key: _rebuilt(value, get) for key, value in content.items()}
    if kind == "value":
        return content
    parts = [_rebuilt(value, get) for value in content]
    return tuple(parts) if kind == "tuple" else parts
