"""The rows of a table as inputs of a network: scaled, dense, batch by batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bbh.adapters.scikit_learn.checking import Table
from bbh.standardisation import standardisation_of

# Numbers of a sparse table that are made dense at once: 256 MiB in double precision.
_DENSE_AT_ONCE = 2**25


@dataclass(frozen=True, eq=False)
class InputScaling:
    """network's inputs = (columns − loc) / scale.

    Attributes:
        loc: One number for every column; None where nothing is subtracted.
        scale: One number for every column.
    """

    loc: Float[np.ndarray, " features"] | None
    scale: Float[np.ndarray, " features"]

    def __call__(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Dense rows, scaled in the precision they have."""
        return (rows if self.loc is None else rows - self.loc) / self.scale


def learn_scaling(table: Table, weights: NDArray[Any]) -> InputScaling:
    """Learns how to bring every column to about the size of one, which networks expect.

    Columns of numbers get mean 0 and standard deviation 1. Columns of nothing but zeros and ones
    (yes or no, one column per category) stay as they are: divided by its small standard deviation,
    a rare category would become a huge number. Columns of a sparse table are only divided by their
    largest magnitude, so that zeros stay zeros, and rare words do not become huge either.

    Args:
        table: All training rows.
        weights: How often every row counts.
    """
    if sparse.issparse(table):
        largest = np.asarray(abs(table).max(axis=0).todense(), dtype=np.float64).ravel()
        return InputScaling(None, np.where(largest > 0, largest, 1.0))
    values = torch.from_numpy(np.array(table))
    known = standardisation_of([(values, torch.from_numpy(weights))], "numbers of X")
    indicators = ((table == 0) | (table == 1)).all(axis=0)
    return InputScaling(
        np.where(indicators, 0.0, known.loc), np.where(indicators, 1.0, known.scale)
    )


def merge_equal_rows(
    table: Table, targets: NDArray[Any], weights: NDArray[Any] | None
) -> tuple[Table, NDArray[Any], NDArray[Any]]:
    """The different rows in a fixed order, and how often each counts; rows of weight 0 are gone.

    Training is chaotic: a sum in another order ends in other weights. With this, the result depends
    neither on the order of the rows nor on whether a row is there twice or has the weight 2.

    Args:
        table: All rows.
        targets: Their classes [B] or targets [B, k]; rows of different targets are different.
        weights: How often every row counts; None stands for once.
    """
    given = np.ones(len(targets)) if weights is None else weights
    keys = [one + own.tobytes() for one, own in zip(_keys(table), targets, strict=True)]
    counted = [index for index in range(len(keys)) if given[index] > 0]
    order = sorted(counted, key=keys.__getitem__)
    ordered = [keys[index] for index in order]
    new = [True, *(before != after for before, after in pairwise(ordered))]
    begins = np.flatnonzero(new)
    first = [order[place] for place in begins]
    return table[first], targets[first], np.add.reduceat(given[order], begins)


def _keys(table: Table) -> Iterator[bytes]:
    """What is equal for equal rows, and different for different ones."""
    if not sparse.issparse(table):
        yield from (row.tobytes() for row in table)
        return
    for begin, end in pairwise(table.indptr):
        yield table.indices[begin:end].tobytes() + b"|" + table.data[begin:end].tobytes()


class Rows(Dataset[Any]):
    """Training rows, with targets and perhaps weights, that come in whole batches.

    Args:
        table: The rows. Those of a sparse table become dense when they are needed.
        scaling: How inputs are scaled; None leaves them as they are.
        dtype: The type that the network computes with.
        others: What every row has besides: its target, its weight.
    """

    def __init__(
        self,
        table: Table,
        scaling: InputScaling | None,
        dtype: torch.dtype,
        others: Sequence[Tensor] = (),
    ):
        # A dense table is scaled once, a sparse one again and again.
        self._sparse = sparse.issparse(table)
        self._table: Any = table if self._sparse else _as_tensor(table, scaling, dtype)
        self._scaling, self._dtype, self._others = scaling, dtype, others

    def __len__(self) -> int:
        return self._table.shape[0]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        """Inputs, targets and weights of some rows; a loader asks for a batch in this way."""
        return (self.inputs(indices), *(one[indices] for one in self._others))

    def inputs(self, indices: list[int] | slice) -> Tensor:
        """The network's inputs for some rows."""
        if not self._sparse:
            return self._table[indices]
        return _as_tensor(self._table[indices].toarray(), self._scaling, self._dtype)

    def parts(self) -> Iterator[Tensor]:
        """The network's inputs for all rows in their order, in parts that fit into memory."""
        number = len(self)
        if self._sparse:
            number = max(1, min(number, _DENSE_AT_ONCE // self._table.shape[1]))
        for first in range(0, len(self), number):
            yield self.inputs(slice(first, first + number))

    def loader(self, batch_size: int) -> DataLoader[Any]:
        """All rows in a new random order in every epoch."""
        # They come as a batch already: there is nothing to put together.
        as_it_is: Any = _as_it_is
        return DataLoader(self, batch_size, shuffle=True, collate_fn=as_it_is)


def _as_tensor(table: NDArray[Any], scaling: InputScaling | None, dtype: torch.dtype) -> Tensor:
    # A copy in any case, since torch refuses arrays that must not be written to.
    scaled = table.copy() if scaling is None else scaling(table)
    return torch.from_numpy(np.ascontiguousarray(scaled)).to(dtype)


def _as_it_is(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return batch
