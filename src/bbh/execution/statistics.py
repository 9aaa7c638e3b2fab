"""Batch-norm statistics of weight draws, computed from given inputs."""

import math
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bbh.batches import Inputs, count, cut, divisible, move
from bbh.execution.base import Execution, NetworkFunction, Runnable
from bbh.memory import peak_bytes, tiling
from bbh.network.layers import INSTANCE_NORMS
from bbh.samples import Params, Samples

# The fewest examples to compute statistics from at once, however much memory they take: the mean
# and variance of fewer examples would say little about a draw.
_FEWEST = 32


class DrawStatistics:
    """Computes the statistics that the normalisation layers of a network have under each draw.

    The network is in evaluation mode. A hook in front of each layer computes mean and variance of
    the layer's inputs, and the layer normalises by these instead of its running statistics. Nothing
    is written to a buffer, so draws can run at once.

    Args:
        network: The network.
        layers: Its batch-norm and instance-norm layers with running statistics, by name.

    Attributes:
        names: Names of the means and variances among the network's buffers.
    """

    def __init__(self, network: Runnable, layers: Mapping[str, nn.Module]):
        self._network = network
        self._layers = dict(layers)
        # A runnable whose outputs are the statistics, in one vector.
        self._runnable = Runnable(self._prepare, network.network, network.weights, network.buffers)
        self._reached: set[str] = set()
        self.names = {
            f"{name}.{leaf}".lstrip(".")
            for name in layers
            for leaf in ("running_mean", "running_var")
        }

    @torch.no_grad()
    def of(
        self,
        samples: Samples,
        batches: Iterable[Inputs],
        execution: Execution,
        memory_limit: int,
    ) -> Params:
        """Statistics for each draw, as buffers of the network ``{name: [S, *shape]}``.

        They are averages over the batches, weighted by the number of examples. Layers that no
        batch reaches are left out.

        Args:
            samples: The draws.
            batches: Batches of inputs, moved to the device of the draws one at a time.
            execution: How to put draws through the network.
            memory_limit: Bytes that activations may take. Batches that take more with a single
                draw are divided.
        """
        draws = Samples({name: value.detach() for name, value in samples.items()})
        device = next(iter(draws.values())).device
        self._reached.clear()
        total, examples, number = None, 0, 0
        for batch in batches:
            inputs = move(batch, device)
            per_example = self._bytes_per_example(inputs, draws, execution)
            for piece in _pieces(inputs, per_example, memory_limit):
                _, at_once = tiling(per_example, count(piece), memory_limit, device)
                parts = [
                    self._run(piece, draws.take(slice(first, first + at_once)), execution)
                    for first in range(0, draws.num_samples, at_once)
                ]
                sums = torch.cat(parts).double() * count(piece)
                total = sums if total is None else total + sums
                examples += count(piece)
            number += 1
        if total is None:
            raise ValueError("the loader is empty: there is nothing to estimate statistics from.")
        return self._named(total / examples, number)

    def _run(self, inputs: Inputs, draws: Samples, execution: Execution) -> Tensor:
        return execution.run(self._runnable, inputs, draws, False)

    def _prepare(self) -> NetworkFunction:
        """A function that runs the network and returns the statistics of all layers in one row."""
        call = self._network.prepare()

        def statistics(inputs: Inputs, draw: Params) -> Tensor:
            found: dict[str, list[Tensor]] = {name: [] for name in self._layers}
            with _hooked(self._layers, found):
                outputs = call(inputs, draw)
            self._reached |= {name for name, each in found.items() if each}
            vectors = [
                # A layer that is used several times has the mean over its uses, as in training.
                torch.stack(found[name]).mean(0) if found[name] else _nothing(layer, outputs)
                for name, layer in self._layers.items()
            ]
            return torch.cat(vectors)

        return statistics

    def _named(self, values: Tensor, number: int) -> Params:
        """Cuts the rows of statistics into tensors with the names and types of the buffers.

        Args:
            values: A row for each draw.
            number: The number of batches that the statistics come from.
        """
        named: Params = {}
        sizes = [2 * _channels(layer) for layer in self._layers.values()]
        for (name, layer), piece in zip(
            self._layers.items(), values.split(sizes, dim=1), strict=True
        ):
            if name not in self._reached:
                continue
            halves = dict(zip(("running_mean", "running_var"), piece.chunk(2, dim=1), strict=True))
            for leaf, buffer in layer.named_buffers(recurse=False):
                full = f"{name}.{leaf}".lstrip(".")
                if leaf in halves:
                    named[full] = halves[leaf].to(buffer.dtype)
                elif leaf == "num_batches_tracked":
                    named[full] = values.new_full((len(values),), number, dtype=buffer.dtype)
        return named

    def _bytes_per_example(self, inputs: Inputs, draws: Samples, execution: Execution) -> int:
        # Two examples: one alone may have no variance.
        some = cut(inputs, 0, 2) if divisible(inputs) else inputs
        one = Samples({name: value[:1].clone() for name, value in draws.items()})
        return max(1, peak_bytes(lambda: self._run(some, one, execution)) // count(some))


def _pieces(inputs: Inputs, per_example: int, limit: int) -> Iterable[Inputs]:
    """The inputs in pieces of nearly the same size that fit into memory with one draw."""
    number = count(inputs)
    fitting = max(_FEWEST, limit // per_example)
    if number <= fitting or not divisible(inputs):
        return [inputs]
    size = math.ceil(number / math.ceil(number / fitting))
    return (cut(inputs, first, first + size) for first in range(0, number, size))


@contextmanager
def _hooked(layers: Mapping[str, nn.Module], found: Mapping[str, list[Tensor]]) -> Generator[None]:
    """Within this context each layer normalises by the statistics of its inputs.

    They are appended to the layer's list in ``found``, mean and variance in one vector.
    """
    handles = [
        layer.register_forward_pre_hook(_taking(name, found[name]), with_kwargs=True)
        for name, layer in layers.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _taking(name: str, found: list[Tensor]) -> Callable[..., None]:
    """The hook of one layer, which computes the statistics of its inputs."""

    def take(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        values: Tensor = args[0] if args else kwargs["input"]
        own = layer.running_mean
        assert isinstance(own, Tensor)
        values = values.to(torch.promote_types(values.dtype, own.dtype))
        alone = isinstance(layer, INSTANCE_NORMS)  # every example by itself
        axes = [axis for axis in range(values.dim()) if axis != 1 and (axis or not alone)]
        number = math.prod(values.shape[axis] for axis in axes)
        if number < 2:
            raise ValueError(
                f"the layer {name!r} has one value per channel, which has no variance: its "
                "statistics take two examples or more."
            )
        variance, mean = torch.var_mean(values, axes, correction=1)
        if alone:
            variance, mean = variance.mean(0), mean.mean(0)
        found.append(torch.cat([mean, variance]))
        # As in training: what is kept divides by n − 1, what normalises this batch by n.
        layer.running_mean = mean.to(own.dtype)
        layer.running_var = (variance * (number - 1) / number).to(own.dtype)

    return take


def _channels(layer: nn.Module) -> int:
    buffer = layer.running_mean
    assert isinstance(buffer, Tensor)
    return buffer.numel()


def _nothing(layer: nn.Module, like: Tensor) -> Tensor:
    """Zeros, as many as the statistics of the layer: it was not reached, and they are not used."""
    return like.new_zeros(2 * _channels(layer))
