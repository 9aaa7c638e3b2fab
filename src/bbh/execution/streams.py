"""Runs weight draws in parallel on a CUDA device."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bbh.batches import Inputs
from bbh.execution.base import Execution, Runnable
from bbh.samples import Samples


@dataclass(frozen=True)
class Streams(Execution):
    """Runs every draw on its own CUDA stream, while a CUDA graph is being recorded.

    Draws that write to the same buffers would overwrite each other's values: ``Recorded`` uses
    streams only after it has checked that the draws write to none.
    """

    def run(
        self, network: Runnable, inputs: Inputs, samples: Samples, inputs_per_draw: bool
    ) -> Tensor:
        """Outputs of all draws, joined on the current stream."""
        here = torch.cuda.current_stream()
        outputs: list[Tensor] = []
        streams: list[torch.cuda.Stream] = []
        call = network.prepare()
        for index, setting in enumerate(network.settings(samples)):
            own = inputs[index] if inputs_per_draw else inputs
            stream = torch.cuda.Stream()
            stream.wait_stream(here)
            for value in (*tree_leaves(own), *setting.values()):
                if isinstance(value, Tensor):
                    value.record_stream(stream)  # its memory is not reused before this draw ends
            with torch.cuda.stream(stream):
                outputs.append(call(own, setting))
            streams.append(stream)
        for stream, output in zip(streams, outputs, strict=True):
            here.wait_stream(stream)
            output.record_stream(here)
        return torch.stack(outputs)
