"""Chooses how weight draws are put through a network."""

import logging
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bbh.batches import Inputs, count
from bbh.execution.base import Execution, Runnable
from bbh.execution.loop import Loop
from bbh.execution.streams import Streams
from bbh.execution.vmap import Vmap
from bbh.network.layers import BATCH_NORMS, CONVOLUTIONS, DROPOUTS, INSTANCE_NORMS
from bbh.samples import Samples

logger = logging.getLogger("bbh")

# Layers that vmap cannot run: cuDNN and the fused attention path have no batching rule.
_REFUSE_VMAP = (
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
# Layers that vmap cannot run in training mode: batch norm updates its statistics in place. Dropout
# is run in a loop so that its random masks do not depend on the way of execution.
_REFUSE_IN_TRAINING = (*BATCH_NORMS, *DROPOUTS)
# Normalisation layers that are slow on a GPU under vmap.
_SLOW_NORMS = (nn.GroupNorm, nn.LayerNorm, *INSTANCE_NORMS)
# From this number of examples on, a convolution takes longer than launching it.
_MANY_EXAMPLES = 100


@dataclass(frozen=True)
class Automatic(Execution):
    """Runs the draws in the fastest way that the network supports."""

    def run(
        self, network: Runnable, inputs: Inputs, samples: Samples, inputs_per_draw: bool
    ) -> Tensor:
        """Outputs of all draws. A network on which vmap fails is run in a loop from then on."""
        examples = count(inputs[0] if inputs_per_draw else inputs)
        chosen = self.choose(network, samples, examples)
        if isinstance(chosen, Loop):
            return chosen.run(network, inputs, samples, inputs_per_draw)
        try:
            with warnings.catch_warnings():
                # For operations without a batching rule vmap warns and falls back to a loop of
                # its own, which is slower than ``Loop``. As an error, the warning is caught below.
                warnings.filterwarnings("error", "There is a performance drop")
                return chosen.run(network, inputs, samples, inputs_per_draw)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, UserWarning, AttributeError) as error:
            # vmap fails on control flow that depends on values, on some in-place operations and on
            # missing batching rules, and it cannot take packed sequences (AttributeError). If the
            # network itself has an error, the loop raises it too.
            outputs = Loop().run(network, inputs, samples, inputs_per_draw)
            network.refuses_vmap = True
            logger.info("%s runs draw by draw: %s", type(network.network).__name__, error)
            return outputs

    def choose(self, network: Runnable, samples: Samples, examples: int) -> Loop | Vmap:
        """Chooses vmap if the network supports it and it is faster, else a loop.

        On a CPU vmap is slower than a loop for convolutions, and faster for small matrices. On a
        GPU vmap is faster, since it launches fewer kernels. An exception is a convolutional network
        with normalisation layers, which are slow under vmap: with many examples the time to launch
        kernels matters little, and a loop is faster.

        Args:
            network: The network to run.
            samples: The draws.
            examples: The number of examples that each draw sees.
        """
        if not _can_be_batched(network, samples):
            return Loop()
        slow = network.has_layer(_SLOW_NORMS) and network.has_layer(CONVOLUTIONS)
        return Loop() if slow and examples >= _MANY_EXAMPLES else Vmap()


class Recorded(Execution):
    """Runs the draws of a training step that is recorded as a CUDA graph.

    Launching a kernel of a graph costs almost nothing. Networks with normalisation layers therefore
    run their draws on parallel streams instead of vmap, unless the draws write to the same buffers.
    The passes before recording check this, so they must use the same object as the recorded one.
    """

    def __init__(self):
        self._writes_buffers = False

    def run(
        self, network: Runnable, inputs: Inputs, samples: Samples, inputs_per_draw: bool
    ) -> Tensor:
        """Outputs of all draws; before recording, also checks whether they write to buffers."""
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
        """Whether the draws of a recorded step run on parallel streams."""
        return (
            network.network.training
            and not self._writes_buffers
            and network.has_layer(_SLOW_NORMS)
            and _can_be_batched(network, samples)
        )


def _can_be_batched(network: Runnable, samples: Samples) -> bool:
    """Whether vmap is worth trying; for convolutions on a CPU it is not, since it is slow."""
    if samples.num_samples == 1 or samples.vary_by_example or network.refuses_vmap:
        return False
    if network.has_layer(_REFUSE_VMAP) or network.has_layer(_REFUSE_IN_TRAINING, training=True):
        return False
    on_cpu = samples.device.type == "cpu"
    return not (on_cpu and network.has_layer(CONVOLUTIONS))
