"""The one place that chooses how draws are put through a network."""

import logging
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bbh.batches import Inputs, count
from bbh.execution.base import Execution, Runnable, draws_per_example
from bbh.execution.loop import Loop
from bbh.execution.streams import Streams
from bbh.execution.vmap import Vmap
from bbh.network.layers import BATCH_NORMS, CONVOLUTIONS, DROPOUTS, INSTANCE_NORMS
from bbh.samples import Samples

logger = logging.getLogger("bbh")

# cuDNN and the fused attention path have no batching rule.
_REFUSE_VMAP = (
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
# Running statistics are updated in place; dropout is left to the loop so that both agree.
_REFUSE_IN_TRAINING = (*BATCH_NORMS, *DROPOUTS)
# Batched, these are slow on a GPU.
_SLOW_NORMS = (nn.GroupNorm, nn.LayerNorm, *INSTANCE_NORMS)
# From so many on a convolution takes longer than its launch.
_MANY_EXAMPLES = 100


@dataclass(frozen=True)
class Automatic(Execution):
    """Takes the way that is fastest and works."""

    def run(
        self, network: Runnable, inputs: Inputs, samples: Samples, inputs_per_draw: bool
    ) -> Tensor:
        """Outputs of all draws; a network that cannot be batched is looped over from then on."""
        examples = count(inputs[0] if inputs_per_draw else inputs)
        chosen = self.choose(network, samples, examples)
        if isinstance(chosen, Loop):
            return chosen.run(network, inputs, samples, inputs_per_draw)
        try:
            with warnings.catch_warnings():
                # Without a batching rule vmap loops by itself, slower than we do.
                warnings.filterwarnings("error", "There is a performance drop")
                return chosen.run(network, inputs, samples, inputs_per_draw)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, UserWarning) as error:
            # Control flow that looks at values, in-place tricks, missing batching rules: vmap
            # refuses them all. If the network itself is at fault, the loop says so.
            outputs = Loop().run(network, inputs, samples, inputs_per_draw)
            network.refuses_vmap = True
            logger.info("%s runs draw by draw: %s", type(network.network).__name__, error)
            return outputs

    def choose(self, network: Runnable, samples: Samples, examples: int) -> Loop | Vmap:
        """Loop unless vmap is known to work and to pay.

        On a CPU vmap over convolution kernels is slower than a loop and over small matrices it is
        faster. On a GPU batched kernels win, but for networks with norms: batched norms are slow.
        Launching the kernels of many examples costs little beside running them.

        Args:
            network: What is run.
            samples: The draws.
            examples: How many each of them sees.
        """
        if not _can_be_batched(network, samples):
            return Loop()
        slow = network.has_layer(_SLOW_NORMS) and network.has_layer(CONVOLUTIONS)
        return Loop() if slow and examples >= _MANY_EXAMPLES else Vmap()


class Recorded(Execution):
    """For a training step that a CUDA graph records: kernels in it cost nothing to launch.

    Networks with norms then run their draws side by side, unless these write to the same buffers.
    Passes before the recorded one look whether they do, so one object serves them all.
    """

    def __init__(self):
        self._writes_buffers = False

    def run(
        self, network: Runnable, inputs: Inputs, samples: Samples, inputs_per_draw: bool
    ) -> Tensor:
        """Outputs of all draws."""
        if not self.forks(network, samples):
            return Automatic().run(network, inputs, samples, inputs_per_draw)
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return Streams().run(network, inputs, samples, inputs_per_draw)
        before = [value.clone() for value in network.buffers()]
        outputs = Loop().run(network, inputs, samples, inputs_per_draw)
        pairs = zip(before, network.buffers(), strict=True)
        self._writes_buffers = not all(torch.equal(old, new) for old, new in pairs)
        return outputs

    def forks(self, network: Runnable, samples: Samples) -> bool:
        """Whether the draws of a recorded step go side by side."""
        return (
            network.network.training
            and not self._writes_buffers
            and network.has_layer(_SLOW_NORMS)
            and _can_be_batched(network, samples)
        )


def _can_be_batched(network: Runnable, samples: Samples) -> bool:
    """Whether vmap may be tried, and not on kernels of convolutions on a CPU, where it is slow."""
    if samples.num_samples == 1 or draws_per_example(samples) or network.refuses_vmap:
        return False
    if network.has_layer(_REFUSE_VMAP) or network.has_layer(_REFUSE_IN_TRAINING, training=True):
        return False
    on_cpu = next(iter(samples.values())).device.type == "cpu"
    return not (on_cpu and network.has_layer(CONVOLUTIONS))
