"""Weight draws side by side on a CUDA device."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bbh.batches import Inputs
from bbh.execution.base import Execution, Runnable
from bbh.samples import Samples


@dataclass(frozen=True)
class Streams(Execution):
    """Every draw on a stream of its own, where a CUDA graph is being recorded.

    Draws that write to the same buffers would get into each other's way: ``Recorded`` takes this
    way only when it has seen that they do not.
    """

    def run(
        self, network: Runnable, inputs: Inputs, samples: Samples, inputs_per_draw: bool
    ) -> Tensor:
        """Outputs of all draws."""
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
                    value.record_stream(stream)  # freed no earlier than this draw is done with it
            with torch.cuda.stream(stream):
                outputs.append(call(own, setting))
            streams.append(stream)
        for stream, output in zip(streams, outputs, strict=True):
            here.wait_stream(stream)
            output.record_stream(here)
        return torch.stack(outputs)
