"""A network that can be run with given weights, and the interface of all ways to run it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

from torch import Tensor, nn

from bbh.batches import Inputs
from bbh.per_example import PerExampleWeight
from bbh.samples import Params, Samples

# A network as a function of inputs and one weight setting.
NetworkFunction = Callable[[Inputs, Params], Tensor]


class Runnable:
    """A network that takes its weights as an argument.

    Args:
        prepare: Makes the function from inputs and one weight setting to outputs; it serves all
            draws of a pass.
        network: Its layers tell what to expect of it.
        weights: Names of what is drawn, as opposed to buffers that may come along with a draw.
        buffers: Gives the network's own buffers, which a pass may write to.

    Attributes:
        refuses_vmap: Whether ``vmap`` over this network has failed before.
        fits_channels_last: Whether the network works on images whose channels are innermost in
            memory; None until this has been tried.
    """

    def __init__(
        self,
        prepare: Callable[[], NetworkFunction],
        network: nn.Module,
        weights: Collection[str],
        buffers: Callable[[], list[Tensor]],
    ):
        self.prepare = prepare
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
        each = samples.apart()
        if samples.device.type != "cuda":
            return each
        return [{name: self._aligned(name, value) for name, value in one.items()} for one in each]

    def _aligned(self, name: str, value: Tensor) -> Tensor:
        if name not in self.weights or isinstance(value, PerExampleWeight):
            return value
        return value.clone() if value.data_ptr() % 16 else value


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
