"""Runs a network with all weight draws at once, as batched operations."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

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
        with _attention_that_has_gradients():
            return batched(inputs, dict(samples))


@contextmanager
def _attention_that_has_gradients() -> Generator[None]:
    """Keeps ``scaled_dot_product_attention`` from kernels that cannot go backward under vmap.

    On a GPU the memory-efficient kernel and cuDNN's leave out what their backward pass needs (the
    logarithms of the sums) unless their inputs require gradients, and under vmap no tensor says
    that it does. The flash kernel always keeps them, and plain operations need none.
    """
    if not torch.is_grad_enabled():
        yield
        return
    flash = [SDPBackend.FLASH_ATTENTION] if torch.backends.cuda.flash_sdp_enabled() else []
    with sdpa_kernel([SDPBackend.MATH, *flash]):
        yield
