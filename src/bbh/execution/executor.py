"""Puts weight draws through a network: one after the other, batched, or side by side."""

import logging
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.utils._pytree import tree_leaves

from bbh.batches import Inputs, count
from bbh.per_example import PerExampleWeight, apart
from bbh.samples import Params, num_draws

logger = logging.getLogger("bbh")


@dataclass(frozen=True)
class Loop:
    """One weight draw after the other: works for every network."""


@dataclass(frozen=True)
class Vmap:
    """All draws at once as batched operations, or ``chunk_size`` at a time."""

    chunk_size: int | None = None


Execution = Loop | Vmap


@dataclass(frozen=True)
class Streams:
    """As ``Loop``, but side by side on the device where a CUDA graph is being recorded.

    Nobody asks for it: draws that write to the same buffers would get into each other's way, so
    passes before the recorded one look whether they do.
    """


# cuDNN and the fused attention path have no batching rule.
_REFUSE_VMAP = (
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
# Running statistics are updated in place; dropout is left to the loop so that both agree.
_REFUSE_IN_TRAINING = (_BatchNorm, nn.modules.dropout._DropoutNd)  # pyright: ignore[reportPrivateUsage]
_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.modules.instancenorm._InstanceNorm)  # pyright: ignore[reportPrivateUsage]
_CONVOLUTIONS = (nn.modules.conv._ConvNd,)  # pyright: ignore[reportPrivateUsage]

# From so many on a convolution takes longer than its launch.
_MANY_EXAMPLES = 100


class Executor:
    """Takes the way that is fastest and works, and remembers what does not.

    Args:
        one: The network's outputs for one draw.
        network: The network; its layers tell what to expect.
        weights: Names of what is drawn, as opposed to buffers that may come along.
        buffers: Gives the network's own buffers, which a pass may write to.

    Attributes:
        in_recording: Whether passes go into a CUDA graph, or rehearse that.
    """

    def __init__(
        self,
        one: Callable[[Inputs, Params], Tensor],
        network: nn.Module,
        weights: Collection[str],
        buffers: Callable[[], list[Tensor]],
    ):
        self.network = network
        self.in_recording = False
        self._one = one
        self._weights = weights
        self._buffers = buffers
        self._vmap_refused = False
        # Whether a pass has been seen to change the network's buffers.
        self._writes_buffers = False
        # Not known before it has been tried.
        self._fits_channels_last: bool | None = None

    def __call__(
        self,
        inputs: Inputs,
        samples: Params,
        inputs_per_draw: bool,
        asked: Execution | None = None,
    ) -> Tensor:
        """Outputs [S, B, …] of all draws.

        Args:
            inputs: A batch.
            samples: The draws.
            inputs_per_draw: The batch is one tensor [S, B, …].
            asked: The way to take; None chooses.
        """
        examples = count(inputs[0] if inputs_per_draw else inputs)
        execution = asked or self.choose(samples, examples)
        if isinstance(execution, Streams):
            return self._in_streams(inputs, samples, inputs_per_draw)
        if isinstance(execution, Loop):
            return self._loop(inputs, samples, inputs_per_draw)
        if any(isinstance(value, PerExampleWeight) for value in samples.values()):
            raise ValueError(
                "draws for every single example run one after the other: leave out "
                "execution=Vmap() in training, or use sampling=Sampling.WEIGHTS."
            )
        try:
            with warnings.catch_warnings():
                # Without a batching rule vmap loops by itself, slower than we do.
                warnings.filterwarnings("error", "There is a performance drop")
                return self._vmap(inputs, samples, execution, inputs_per_draw)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, UserWarning) as error:
            if asked is not None:
                raise
            # Control flow that looks at values, in-place tricks, missing batching rules: vmap
            # refuses them all. If the network itself is at fault, the loop says so.
            outputs = self._loop(inputs, samples, inputs_per_draw)
            self._vmap_refused = True
            logger.info("%s runs draw by draw: %s", type(self.network).__name__, error)
            return outputs

    def choose(self, samples: Params, examples: int) -> Execution | Streams:
        """Loop unless vmap is known to work and to pay.

        On a CPU vmap over convolution kernels is slower than a loop and over small matrices it is
        faster. On a GPU batched kernels win, but for networks with norms: batched norms are slow.
        Kernels of a recorded step cost nothing to launch, and those of many examples little.

        Args:
            samples: The draws.
            examples: How many each of them sees.
        """
        one_draw = num_draws(samples) == 1
        per_example = any(isinstance(value, PerExampleWeight) for value in samples.values())
        if one_draw or per_example or self._vmap_refused:
            return Loop()
        modules = list(self.network.modules())
        if any(isinstance(module, _REFUSE_VMAP) for module in modules):
            return Loop()
        if any(module.training and isinstance(module, _REFUSE_IN_TRAINING) for module in modules):
            return Loop()
        convolves = any(isinstance(module, _CONVOLUTIONS) for module in modules)
        if convolves and next(iter(samples.values())).device.type == "cpu":
            return Loop()
        # Steps before the recorded one have shown whether draws write to the same buffers.
        alone = self.in_recording and self.network.training and not self._writes_buffers
        normed = any(isinstance(module, _NORMS) for module in modules)
        if normed and alone:
            return Streams()
        return Loop() if normed and convolves and examples >= _MANY_EXAMPLES else Vmap()

    def _loop(self, inputs: Inputs, samples: Params, inputs_per_draw: bool) -> Tensor:
        images = None if self._fits_channels_last is False else self._channels_last(inputs)
        if images is None:
            return self._one_by_one(inputs, samples, inputs_per_draw)
        if self._fits_channels_last is None:
            return self._try_channels_last(images, inputs, samples, inputs_per_draw)
        return self._one_by_one(images, samples, inputs_per_draw)

    def _try_channels_last(
        self, images: Tensor, inputs: Inputs, samples: Params, inputs_per_draw: bool
    ) -> Tensor:
        """The first pass with this layout; where it fails, all is as if it had not been tried."""
        carried = [value for name, value in samples.items() if name not in self._weights]
        saved = [(value, value.clone()) for value in (*self._buffers(), *carried)]
        randomness = torch.get_rng_state()
        try:
            outputs = self._one_by_one(images, samples, inputs_per_draw)
            self._fits_channels_last = True
        except Exception as error:
            # A view of pixels in the order of the other layout, where reshape would have done. If
            # the network itself is at fault, it says so now.
            torch.set_rng_state(randomness)
            for value, before in saved:
                value.copy_(before)
            outputs = self._one_by_one(inputs, samples, inputs_per_draw)
            self._fits_channels_last = False
            logger.info("%s keeps channels first: %s", type(self.network).__name__, error)
        return outputs

    def _one_by_one(self, inputs: Inputs, samples: Params, inputs_per_draw: bool) -> Tensor:
        return torch.stack(
            [
                self._one(inputs[index] if inputs_per_draw else inputs, self._aligned(draw))
                for index, draw in enumerate(apart(samples))
            ]
        )

    def _in_streams(self, inputs: Inputs, samples: Params, inputs_per_draw: bool) -> Tensor:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return self._side_by_side(inputs, samples, inputs_per_draw)
        before = [value.clone() for value in self._buffers()]
        outputs = self._loop(inputs, samples, inputs_per_draw)
        pairs = zip(before, self._buffers(), strict=True)
        self._writes_buffers = not all(torch.equal(old, new) for old, new in pairs)
        return outputs

    def _side_by_side(self, inputs: Inputs, samples: Params, inputs_per_draw: bool) -> Tensor:
        here = torch.cuda.current_stream()
        outputs: list[Tensor] = []
        streams: list[torch.cuda.Stream] = []
        for index, draw in enumerate(apart(samples)):
            own, draw = inputs[index] if inputs_per_draw else inputs, self._aligned(draw)
            stream = torch.cuda.Stream()
            stream.wait_stream(here)
            for value in (*tree_leaves(own), *draw.values()):
                if isinstance(value, Tensor):
                    value.record_stream(stream)  # freed no earlier than this draw is done with it
            with torch.cuda.stream(stream):
                outputs.append(self._one(own, draw))
            streams.append(stream)
        for stream, output in zip(streams, outputs, strict=True):
            here.wait_stream(stream)
            output.record_stream(here)
        return torch.stack(outputs)

    def _channels_last(self, inputs: Inputs) -> Tensor | None:
        """Images with their channels innermost in memory; None where that is of no use.

        On a CPU convolutions and pooling are faster so, and layers hand the layout on from one to
        the next. Tensors hold the same numbers in either; only code that reads strides
        itself could tell.
        """
        if not isinstance(inputs, Tensor) or inputs.dim() < 4 or inputs.device.type != "cpu":
            return None
        convolves = any(isinstance(module, nn.Conv2d) for module in self.network.modules())
        if not convolves or not torch.backends.mkldnn.is_available():
            return None
        # Written out: of images with one channel, contiguous(memory_format=…) changes nothing.
        moved = inputs.movedim(-3, -1).contiguous()
        strides = list(moved.movedim(-1, -3).stride())
        strides[-3] = 1
        return moved.as_strided(inputs.shape, strides)

    def _aligned(self, draw: Params) -> Params:
        """Copies of weights that do not begin at a multiple of 16 bytes; of nothing else.

        Draws are views into larger tensors. Some CUDA kernels, those of fused transformer layers
        among them, read 16 bytes at once and fail on such a view without asking. A network's
        buffers stay views: what is written to them must stay.
        """
        return {
            name: value.clone()
            if value.is_cuda
            and name in self._weights
            and not isinstance(value, PerExampleWeight)
            and value.data_ptr() % 16
            else value
            for name, value in draw.items()
        }

    def _vmap(
        self, inputs: Inputs, samples: Params, execution: Vmap, inputs_per_draw: bool
    ) -> Tensor:
        return vmap(
            self._one,
            in_dims=(0 if inputs_per_draw else None, 0),
            randomness="different",
            chunk_size=execution.chunk_size,
        )(inputs, dict(samples))  # draws that carry more than their weights are a kind of dict
