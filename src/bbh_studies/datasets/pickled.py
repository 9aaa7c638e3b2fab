"""CIFAR-10's Python files: NumPy arrays in pickles, read without running what a pickle asks for.

A pickle is a program for a small machine, which may call any function. Here is a machine that knows
only the instructions of which pickled arrays, lists, dictionaries and strings consist. The names of
NumPy that such pickles call stand for objects that keep their arguments and do nothing; NumPy never
sees the content. Python's own machines can be busy for ever with a hundred bytes, or take all
memory.
"""

import pickletools
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Each image has a label and the name of its file, which is remembered: four instructions or so.
_PER_IMAGE, _BESIDES = 10, 200


class PickleError(ValueError):
    """A pickle does not hold what was asked for."""


class _Kind:
    """Stands in for ``numpy.dtype``: keeps its name."""

    name: object = None

    def build(self, state: Any) -> None:
        """Byte order and alignment, which do not matter for bytes."""


class _Array:
    """Stands in for ``numpy.ndarray``: keeps the state from which one would be made."""

    shape: object = None
    kind: object = None
    raw: object = None
    columns_first: object = False

    def build(self, state: Any) -> None:
        """Keeps the state."""
        _, self.shape, kind, self.columns_first, self.raw = state
        self.kind = getattr(kind, "name", None)

    @property
    def is_bytes(self) -> bool:
        """Whether the array holds unsigned bytes, as Python 2 or 3 names them."""
        return self.kind in ("u1", b"u1") and isinstance(self.raw, bytes)


# What pickles of arrays call: an empty array, its class, its type, and bytes as Python 3 writes
# them for Python 2.
_ARRAY, _CLASS, _TYPE, _ENCODE = "array", "class", "type", "encode"
_KNOWN = {
    "numpy.core.multiarray _reconstruct": _ARRAY,
    "numpy._core.multiarray _reconstruct": _ARRAY,
    "numpy ndarray": _CLASS,
    "numpy dtype": _TYPE,
    "_codecs encode": _ENCODE,
}


class _Called:
    """A known name on the stack, which no string of the pickle can be mistaken for."""

    def __init__(self, name: str):
        if name not in _KNOWN:
            raise PickleError(f"it asks for {'.'.join(name.split(' ', 1))}")
        self.what = _KNOWN[name]


class _Machine:
    """Follows the instructions of a pickle.

    Args:
        content: The pickle.
        most: The largest number of instructions.
    """

    def __init__(self, content: bytes, most: int):
        self._content = content
        self._most = most
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memory: dict[int, Any] = {}
        # Bytes that may be made of text: the same text could be taken again and again.
        self._left = 2 * len(content)

    def run(self) -> Any:
        """What the pickle holds."""
        for number, (instruction, argument, _) in enumerate(pickletools.genops(self._content)):
            if number > self._most:
                raise PickleError("it has far too many instructions")
            if instruction.name == "STOP":
                break
            self._follow(instruction.name, argument)
        return self._stack.pop()

    def _follow(self, name: str, argument: Any) -> None:
        stack, memory = self._stack, self._memory
        match name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                self._marks.append(len(stack))
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINUNICODE" | "SHORT_BINUNICODE":
                stack.append(argument)
            case "BINBYTES" | "SHORT_BINBYTES":
                stack.append(argument)
            case "BINSTRING" | "SHORT_BINSTRING":
                stack.append(argument.encode("latin1"))
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                stack.append({"EMPTY_DICT": {}, "EMPTY_LIST": [], "EMPTY_TUPLE": ()}[name])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._pop(int(name[-1]))))
            case "TUPLE":
                stack.append(tuple(self._since_mark()))
            case "APPEND" | "APPENDS":
                parts = self._pop(1) if name == "APPEND" else self._since_mark()
                _checked(stack[-1], list).extend(parts)
            case "SETITEM" | "SETITEMS":
                self._set_items(self._pop(2) if name == "SETITEM" else self._since_mark())
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                memory[len(memory) if name == "MEMOIZE" else argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memory[argument])
            case "GLOBAL" | "STACK_GLOBAL":
                stack.append(_Called(argument or " ".join(self._pop(2))))
            case "REDUCE":
                called, arguments = self._pop(2)
                stack.append(self._call(_checked(called, _Called).what, arguments))
            case "BUILD":
                (state,) = self._pop(1)
                _checked(stack[-1], _Array | _Kind).build(state)
            case _:
                raise PickleError(f"it has the instruction {name}")

    def _call(self, what: str, arguments: Any) -> Any:
        if what == _ARRAY:
            return _Array()
        if what == _TYPE:
            kind = _Kind()
            kind.name = arguments[0]
            return kind
        if what != _ENCODE:
            raise PickleError("it calls a class")
        text = _checked(arguments[0], str)
        self._left -= len(text)
        if self._left < 0:
            raise PickleError("it makes more of its bytes than it has")
        return text.encode("latin1")

    def _set_items(self, items: list[Any]) -> None:
        names, values = items[::2], items[1::2]
        # By names only: to hash tuples of tuples may take for ever.
        if not all(isinstance(name, str | bytes) for name in names):
            raise PickleError("it has keys that are no names")
        _checked(self._stack[-1], dict).update(zip(names, values, strict=True))

    def _pop(self, number: int) -> list[Any]:
        if number > len(self._stack):
            raise PickleError("it takes what is not there")
        parts = self._stack[-number:]
        del self._stack[-number:]
        return parts

    def _since_mark(self) -> list[Any]:
        mark = self._marks.pop()
        parts = self._stack[mark:]
        del self._stack[mark:]
        return parts


def _checked(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise PickleError(f"it changes or calls a {type(value).__name__}")
    return value


def read_images_and_labels(content: bytes, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Reads ``data``, an array of bytes of the given shape, and ``labels``, a number per row.

    Raises:
        PickleError: Says what is there instead.
    """
    try:
        batch = _Machine(content, _PER_IMAGE * shape[0] + _BESIDES).run()
    except PickleError:
        raise
    except Exception as error:  # a damaged pickle may raise any exception
        raise PickleError(f"{type(error).__name__}: {error}") from error
    if not isinstance(batch, dict):
        raise PickleError("it holds no dictionary")
    # Keys are bytes where Python 2 wrote them.
    images, labels = (batch.get(name.encode(), batch.get(name)) for name in ("data", "labels"))
    if not (isinstance(images, _Array) and images.is_bytes and images.shape == shape):
        raise PickleError(f"its data are no bytes of shape {shape}")
    raw = bytearray(images.raw)  # pyright: ignore[reportArgumentType]
    if len(raw) != shape[0] * shape[1]:
        raise PickleError(f"its data are {len(raw):,} bytes, not {shape[0] * shape[1]:,}")
    if not isinstance(labels, list) or len(labels) != shape[0]:
        raise PickleError(f"its labels are no list of {shape[0]:,}")
    if not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise PickleError("its labels are no small numbers")
    pixels = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if images.columns_first else "C")
    return torch.from_numpy(np.ascontiguousarray(pixels)), torch.tensor(labels, dtype=torch.uint8)
