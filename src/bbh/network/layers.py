"""Kinds of layers, and where a network has them."""

from collections.abc import Iterable

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from bbh.samples import Params

# PyTorch has no public names for these families.
BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)  # pyright: ignore[reportPrivateUsage]
INSTANCE_NORMS = (nn.modules.instancenorm._InstanceNorm,)  # pyright: ignore[reportPrivateUsage]
CONVOLUTIONS = (nn.modules.conv._ConvNd,)  # pyright: ignore[reportPrivateUsage]
TRANSPOSED = (nn.modules.conv._ConvTransposeNd,)  # pyright: ignore[reportPrivateUsage]
DROPOUTS = (nn.modules.dropout._DropoutNd,)  # pyright: ignore[reportPrivateUsage]
NORMALISATIONS: tuple[type[nn.Module], ...] = (
    *BATCH_NORMS,
    *INSTANCE_NORMS,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


def dropout_layers(network: nn.Module) -> tuple[str, ...]:
    """Names of the layers that switch units off."""
    return tuple(
        name
        for name, module in network.named_modules()
        if isinstance(module, DROPOUTS) and module.p > 0
    )


def input_axes(network: nn.Module, values: Params) -> dict[str, int]:
    """The axis of the input units of every matrix and convolution, in the network's order."""
    axes: dict[str, int] = {}
    for name, value in values.items():
        owner = network.get_submodule(name.rpartition(".")[0])
        # Rows of an embedding are looked up, not summed over: it has no input units. What lies
        # behind a parametrisation (a weight norm, say) is not the kernel that meets the inputs.
        without = nn.Embedding | nn.EmbeddingBag | ParametrizationList
        if value.dim() >= 2 and not isinstance(owner, without):
            axes[name] = 0 if isinstance(owner, TRANSPOSED) else 1
    return axes


def kernel_groups(network: nn.Module, names: Iterable[str]) -> dict[str, int]:
    """Into how many groups of units each of these convolutions is divided."""
    owners = {name: network.get_submodule(name.rpartition(".")[0]) for name in names}
    return {name: m.groups for name, m in owners.items() if isinstance(m, CONVOLUTIONS)}
