"""Runs a network with all weight draws at once, as batched operations."""

from dataclasses import dataclass

from torch import Tensor
from torch.func import vmap

from bbh.batches import Inputs
from bbh.execution.base import Execution, Runnable
from bbh.samples import Samples


@dataclass(frozen=True)
class Vmap(Execution):
    """Runs all draws at once as batched operations, or ``chunk_size`` draws at a time."""

    chunk_size: int | None = None

    def run(
        self, network: Runnable, inputs: Inputs, samples: Samples, inputs_per_draw: bool
    ) -> Tensor:
        """Outputs of all draws."""
        if samples.vary_by_example:
            raise ValueError(
                "draws for every single example run one after the other: leave out "
                "execution=Vmap() in training, or use sampling=Sampling.WEIGHTS."
            )
        batched = vmap(
            network.prepare(),
            in_dims=(0 if inputs_per_draw else None, 0),
            randomness="different",
            chunk_size=self.chunk_size,
        )
        return batched(inputs, dict(samples))
