"""Records a computation on rows of numbers, to be compiled.

The computation is written once, with torch's operations on whole rows. Done by torch, each of its
operations reads and writes memory. Written down one after the other they are the body of a loop
over columns, or of a GPU's kernel, that reads the inputs once and writes the results once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

Rows = list[Tensor]
# Takes tables, which are lists of rows, and returns a row of terms to be summed and result rows.
Computation = Callable[..., tuple[Tensor, Rows]]
# Operations that are written alike in C++ and in Triton.
ARITHMETIC = {
    "neg": "-{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "__rdiv__": "{1} / {0}",
}


class Language(NamedTuple):
    """How operations are written in a programming language.

    Attributes:
        expressions: For torch's name of an operation, the expression with places for arguments.
        number: How a constant is written.
        entry: How the current column's entry in a row of a table is written.
    """

    expressions: Mapping[str, str]
    number: str
    entry: str


class Recording(NamedTuple):
    """A computation written down.

    Attributes:
        steps: A name and an expression for each operation, in their order.
        term: Name of the number that is summed over columns.
        results: Names of the results.
    """

    steps: list[tuple[str, str]]
    term: str
    results: list[str]


def record(computation: Computation, sizes: Sequence[int], language: Language) -> Recording:
    """Writes down a computation.

    Args:
        computation: Takes tables, which are lists of rows, and returns a row of terms to be summed
            and a list of rows.
        sizes: The number of rows of each table.
        language: Has the operations that the computation may use.
    """
    recorder = _Recorder(language)
    tables = [
        [recorder.entry(table, row) for row in range(size)] for table, size in enumerate(sizes)
    ]
    with recorder:
        term, results = computation(*tables)
    return Recording(recorder.steps, recorder.name(term), [recorder.name(one) for one in results])


class _Recorder(TorchFunctionMode):
    """Writes down the operations that are done while it is active."""

    def __init__(self, language: Language):
        super().__init__()
        self.steps: list[tuple[str, str]] = []
        self._language = language
        # Tensors are kept, since the address of a freed one may be that of another.
        self._names: dict[int, tuple[str, Tensor]] = {}

    def entry(self, table: int, row: int) -> Tensor:
        """A tensor that stands for an entry of a table."""
        place = self._language.entry.format(table=table, row=row)
        return self._record(torch.ones(1, device="cpu"), place)

    def name(self, number: Tensor | float) -> str:
        """How a result or a constant is written."""
        if isinstance(number, Tensor):
            return self._names[id(number)][0]
        return self._language.number.format(float(number))

    def __torch_function__(
        self,
        func: Callable[..., Tensor],
        types: Sequence[type],
        args: tuple[Tensor | float, ...] = (),
        kwargs: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Does the operation and writes it down."""
        expression = self._language.expressions[func.__name__].format(*map(self.name, args))
        return self._record(func(*args, **(kwargs or {})), expression)

    def _record(self, result: Tensor, expression: str) -> Tensor:
        name = f"x{len(self.steps)}"
        self.steps.append((name, expression))
        self._names[id(result)] = name, result
        return result
