"""How a posterior is built that a file will fill: within limits, and without initial values."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# However small a file is, this much may be built: initial values are copied a few times over, and a
# posterior of a few weights has a critic, say, or draws that it never stores.
_VALUES, _OPERATIONS = 10**6, 10**4
# And this many times as many values as the file has, at once and in all.
_AT_ONCE, _IN_ALL = 4, 100


class TooLargeError(ValueError):
    """A description asks for far more than the file holds."""


class BoundedBuilding(TorchDispatchMode):
    """Within this context PyTorch makes only about as many values as a file can fill.

    A description is a few words long and may ask for ten million networks or for layers of any
    width. Every operation is counted, and refused before it allocates memory where its arguments
    tell how much.

    Tensors that would be filled with random numbers are filled with zeros, which takes a fraction
    of the time: the file's values replace them.

    Args:
        num_values: The number of values in the file.
    """

    def __init__(self, num_values: int):
        super().__init__()
        self._at_once = _VALUES + _AT_ONCE * num_values
        self._in_all = _IN_ALL * (_VALUES + num_values)
        self._operations = _OPERATIONS + num_values

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs one operation."""
        self._operations -= 1
        # A view takes no memory, and the list in its arguments may be no shape: split's, say.
        is_view = getattr(func, "is_view", False)
        wanted = 0 if is_view else max((prod(one) for one in args if _is_shape(one)), default=0)
        if wanted > self._at_once or self._in_all < 0 or self._operations < 0:
            raise TooLargeError("it describes something far larger than what it holds")
        if _fills_at_random(func):
            return args[0].zero_()
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self._in_all -= result.numel()
        return result


def _fills_at_random(func: Any) -> bool:
    """Whether an operation fills a tensor in place with random numbers: normal_, uniform_, …"""
    return (
        torch.Tag.nondeterministic_seeded in func.tags and func.overloadpacket.__name__[-1] == "_"
    )


def _is_shape(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, int) for one in value)
