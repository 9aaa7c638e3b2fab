"""A network that can be run with given weights, and the interface of all ways to run it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

from torch import Tensor, nn

from bbh.batches import Inputs
from bbh.per_example import PerExampleWeight
from bbh.samples import Params, Samples


class Runnable:
    """A network that takes its weights as an argument.

    Args:
        call: A function that returns the network's outputs for inputs and one weight setting.
        network: The module itself; its layers decide which way to run it is best.
        weights: Names of the sampled parameters. Draws may also contain buffers, which are not
            among these names.
        buffers: A function that returns the network's buffers, which a pass may write to.

    Attributes:
        refuses_vmap: Whether ``vmap`` over this network has failed before.
        fits_channels_last: Whether the network works on images whose channels are innermost in
            memory; None until this has been tried.
    """

    def __init__(
        self,
        call: Callable[[Inputs, Params], Tensor],
        network: nn.Module,
        weights: Collection[str],
        buffers: Callable[[], list[Tensor]],
    ):
        self.call = call
        self.network = network
        self.weights = weights
        self.buffers = buffers
        self._modules = list(network.modules())
        self.refuses_vmap = False
        self.fits_channels_last: bool | None = None

    def has_layer(self, kinds: tuple[type[nn.Module], ...], *, training: bool = False) -> bool:
        """Whether a layer is of one of these kinds and, if ``training``, is in training mode."""
        return any(
            isinstance(module, kinds) and (module.training or not training)
            for module in self._modules
        )

    def settings(self, samples: Samples) -> list[Params]:
        """The draws as single weight settings, ready to be passed to the network.

        Draws are views into larger tensors. Some CUDA kernels, such as those of fused transformer
        layers, read 16 bytes at once, do not check the address, and fail on a view that does not
        begin at a multiple of 16 bytes. Such weights are therefore copied. Buffers stay views, so
        that what the network writes to them is kept.
        """
        return [
            {name: self._aligned(name, value) for name, value in one.items()}
            for one in samples.apart()
        ]

    def _aligned(self, name: str, value: Tensor) -> Tensor:
        free = value.is_cuda and name in self.weights and not isinstance(value, PerExampleWeight)
        return value.clone() if free and value.data_ptr() % 16 else value


class Execution(ABC):
    """A way to put weight draws through a network."""

    @abstractmethod
    def run(
        self, network: Runnable, inputs: Inputs, samples: Samples, inputs_per_draw: bool
    ) -> Tensor:
        """Outputs [S, B, …] of all draws.

        Args:
            network: The network to run.
            inputs: A batch.
            samples: The draws.
            inputs_per_draw: Whether ``inputs`` is one tensor [S, B, …] with separate examples for
                each draw.
        """


def draws_per_example(samples: Samples) -> bool:
    """Whether each example of a batch gets its own weights, which only ``Loop`` supports."""
    return any(isinstance(value, PerExampleWeight) for value in samples.values())
