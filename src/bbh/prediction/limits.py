"""Divides the memory limit of a prediction among what it holds at once."""

from typing import Any

import torch
from torch import Tensor

from bbh import checks
from bbh.batches import Inputs, count, cut, move
from bbh.memory import LARGEST_BATCH, peak_bytes, tiling
from bbh.posterior import Posterior
from bbh.prediction.draws import Draws
from bbh.samples import Samples

# On a CPU kernels allocate memory of their own, which cannot be counted from outside: rearranged
# images of a convolution or the gates of an LSTM, up to four times of what they return. And an
# allocator leaves holes between buffers of different sizes. So on a CPU tensors may take this share
# of the memory for work. With the default limit it makes no difference: no more examples are
# processed at once than fit into a CPU's cache.
_SHARE_OF_TENSORS = 4


class Limits:
    """Divides the memory limit: a quarter for draws, a quarter for kept outputs, half for work."""

    def __init__(self, batch_size: int | None, memory_limit: int):
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: at least one example per call.")
        checks.number("memory_limit", memory_limit, positive=True)
        self.batch_size = batch_size or LARGEST_BATCH
        self.memory_limit = memory_limit
        self.draws = memory_limit // 4
        self.kept = memory_limit // 4
        self.work = memory_limit // 2

    def check_kept(self, size: int) -> None:
        """Raises if the outputs to keep take more than their share of the memory limit."""
        if size > self.kept:
            raise MemoryError(
                f"the outputs of all draws take more than a quarter of memory_limit="
                f"{self.memory_limit:,} bytes. Predict fewer inputs at a time, take fewer draws, "
                "raise memory_limit, or leave out keep_draws."
            )


class Tiles:
    """Says how many examples and draws to process at once, from a pass of one example.

    Args:
        posterior: The posterior, in evaluation mode.
        piece: Inputs, of which the first example is tried.
        draws: The weight draws, of which the first is tried.
        limits: What the work may take.
        half: The precision of the network, if it is not single precision.
    """

    def __init__(
        self,
        posterior: Posterior[Any],
        piece: Inputs,
        draws: Draws,
        limits: Limits,
        half: torch.dtype | None,
    ):
        self._device = posterior.device
        self._batch_size = limits.batch_size
        self._work = limits.work // (_SHARE_OF_TENSORS if self._device.type == "cpu" else 1)
        one, draw = move(cut(piece, 0, 1), self._device), draws.first()
        self._per_example = max(
            1,
            peak_bytes(lambda: posterior.likelihood.sums(outputs_of(posterior, one, draw, half))),
        )

    def of(self, piece: Inputs) -> tuple[int, int]:
        """The number of examples of ``piece`` and the number of draws to process at once."""
        return tiling(self._per_example, count(piece), self._work, self._device, self._batch_size)


def outputs_of(
    posterior: Posterior[Any], inputs: Inputs, samples: Samples, half: torch.dtype | None
) -> Tensor:
    """The network's outputs in single precision, computed in half precision if there is one."""
    if half is None:
        return posterior(inputs, samples)
    with torch.autocast(posterior.device.type, half):
        return posterior(inputs, samples).float()
