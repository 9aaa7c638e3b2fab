"""Kinds of layers, and functions that find them in a network."""

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
_WITH_STATISTICS = (*BATCH_NORMS, *INSTANCE_NORMS)


def statistics_layers(network: nn.Module) -> dict[str, nn.Module]:
    """The normalisation layers that keep running statistics for use in evaluation, by name."""
    return {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, _WITH_STATISTICS) and module.running_mean is not None
    }


def describe_modules(network: nn.Module) -> dict[str, str]:
    """The class and the settings of every module by name, e.g. ``Linear(in_features=2, …)``.

    A stride or a dropout rate does not show in any tensor.
    """
    return {
        name: f"{type(module).__name__}({module.extra_repr()})"
        for name, module in network.named_modules()
    }


def dropout_layers(network: nn.Module) -> tuple[str, ...]:
    """Names of the dropout layers with a positive rate."""
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
        # An embedding has no input units, since its rows are looked up and not summed over. The
        # original tensor of a parametrisation (weight norm, say) is not the kernel that is
        # multiplied by the inputs.
        without = nn.Embedding | nn.EmbeddingBag | ParametrizationList
        if value.dim() >= 2 and not isinstance(owner, without):
            axes[name] = 0 if isinstance(owner, TRANSPOSED) else 1
    return axes


def kernel_groups(network: nn.Module, names: Iterable[str]) -> dict[str, int]:
    """The number of groups of each convolution among these kernels."""
    owners = {name: network.get_submodule(name.rpartition(".")[0]) for name in names}
    return {name: m.groups for name, m in owners.items() if isinstance(m, CONVOLUTIONS)}


def width(network: nn.Module, values: Params) -> int:
    """The number of units that sum over their inputs, or the most inputs of one if that is more.

    >>> network = nn.Sequential(nn.Embedding(1000, 8), nn.Linear(8, 20), nn.Linear(20, 1))
    >>> width(network, dict(network.named_parameters()))
    21
    """
    units = most_inputs = 0
    for name, value in values.items():
        owner = network.get_submodule(name.rpartition(".")[0])
        # Rows of an embedding are looked up and not summed over.
        if value.dim() >= 2 and not isinstance(owner, nn.Embedding | nn.EmbeddingBag):
            outputs = owner.out_channels if isinstance(owner, TRANSPOSED) else value.shape[0]
            units += outputs
            most_inputs = max(most_inputs, value.numel() // outputs)
    return max(units, most_inputs)
