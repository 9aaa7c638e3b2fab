"""Named weights: one setting, or S of them stacked, and which of a network's are Bayesian.

A *sample* of weights is a plain dictionary ``{name: [S, *shape]}``. Nothing in the library
writes weights into a network; they are passed to it.
"""

import difflib
import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

Params = dict[str, Tensor]
Shapes = dict[str, torch.Size]
Selection = str | Iterable[str] | Callable[[str, Tensor], bool] | None

NORMALISATION_LAYERS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._BatchNorm,  # pyright: ignore[reportPrivateUsage]
    nn.modules.instancenorm._InstanceNorm,  # pyright: ignore[reportPrivateUsage]
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


def size(shapes: Shapes) -> int:
    """Number of weights D in all tensors together.

    >>> size({"weight": torch.Size([2, 3]), "bias": torch.Size([2])})
    8
    """
    return sum(math.prod(shape) for shape in shapes.values())


def num_draws(samples: Params) -> int:
    """S, the number of stacked weight settings.

    >>> num_draws({"bias": torch.zeros(5, 3)})
    5
    """
    return len(next(iter(samples.values())))


def flatten(samples: Params, shapes: Shapes) -> Float[Tensor, "S D"]:
    """Lays the tensors named by ``shapes`` side by side, one row per weight sample.

    >>> flatten({"b": torch.ones(4, 2), "w": torch.zeros(4, 3, 1)}, {"w": torch.Size([3, 1])}).shape
    torch.Size([4, 3])
    """
    # Not flatten(1): stacked scalars [S] have no second axis.
    return torch.cat(
        [samples[name].reshape(-1, math.prod(shape)) for name, shape in shapes.items()], dim=1
    )


def side_by_side(values: Params) -> Float[Tensor, " D"]:
    """One setting of the weights as a vector."""
    return torch.cat([value.flatten() for value in values.values()])


def unflatten(matrix: Float[Tensor, "S D"], shapes: Shapes) -> Params:
    """Cuts rows of D weights back into named tensors: the inverse of ``flatten``."""
    pieces = matrix.split([math.prod(shape) for shape in shapes.values()], dim=1)
    return {
        name: piece.unflatten(1, shape) if len(shape) else piece.squeeze(1)
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


def fan_in(name: str, shapes: Shapes) -> int:
    """How many inputs one output of this tensor sums over; a bias takes its weight's.

    >>> shapes = {"fc.weight": torch.Size([10, 500]), "fc.bias": torch.Size([10])}
    >>> fan_in("fc.weight", shapes), fan_in("fc.bias", shapes)
    (500, 500)
    """
    shape = shapes[name]
    if len(shape) < 2:
        module, _, leaf = name.rpartition(".")
        sibling = f"{module}.{leaf.replace('bias', 'weight')}".lstrip(".")
        # A vector without a kernel beside it (a norm's scale, say) is its own fan.
        shape = shapes.get(sibling, shape)
    return max(1, math.prod(shape[1:]) if len(shape) > 1 else math.prod(shape))


def trainable_parameters(network: nn.Module) -> Params:
    """The network's parameters that ask for a gradient, tied ones once."""
    return {name: value for name, value in network.named_parameters() if value.requires_grad}


def select_bayesian(network: nn.Module, bayesian: Selection) -> list[str]:
    """Names of the parameters that get a distribution, in the network's order.

    Args:
        network: Frozen parameters (``requires_grad=False``) are never selected.
        bayesian: Names, module names or glob patterns, or a predicate of name and tensor.
            ``None`` takes every trainable parameter but those of normalisation layers,
            which stay point estimates as in the paper.
    """
    trainable = trainable_parameters(network)
    if not trainable:
        raise ValueError(
            "the network has no trainable parameter: every one has requires_grad=False "
            "(or there is none at all). Unfreeze what should be Bayesian."
        )
    if bayesian is None:
        chosen = set(trainable) - _normalisation_names(network)
    elif isinstance(bayesian, nn.Module):
        raise TypeError("bayesian= takes a module's name, not the module itself.")
    elif callable(bayesian):
        chosen = {name for name, value in trainable.items() if bayesian(name, value)}
    else:
        patterns = [bayesian] if isinstance(bayesian, str) else list(bayesian)
        chosen = set[str]().union(*(_match(pattern, network, trainable) for pattern in patterns))
    if not chosen:
        raise ValueError(
            f"bayesian={bayesian!r} selects no trainable parameter. "
            f"Trainable here: {_listing(trainable)}."
        )
    return [name for name in trainable if name in chosen]


def _normalisation_names(network: nn.Module) -> set[str]:
    return {
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in network.named_modules()
        if isinstance(module, NORMALISATION_LAYERS)
        for name, _ in module.named_parameters(recurse=False)
    }


def _match(pattern: str, network: nn.Module, trainable: Mapping[str, Tensor]) -> set[str]:
    canonical = {id(value): name for name, value in network.named_parameters()}
    # Tied weights answer to each of their names.
    aliases = list(network.named_parameters(remove_duplicate=False))
    matched = {
        canonical[id(value)]
        for name, value in aliases
        if fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")
    }
    if not matched:
        names = [name for name, _ in aliases]
        close = difflib.get_close_matches(pattern, names, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"bayesian pattern {pattern!r} matches no parameter.{hint} "
            f"The network has: {_listing(names)}."
        )
    if matched.isdisjoint(trainable):
        raise ValueError(
            f"bayesian pattern {pattern!r} matches only frozen parameters "
            f"({_listing(sorted(matched))}): call requires_grad_(True) on them first."
        )
    return matched


def _listing(names: Iterable[str], most: int = 12) -> str:
    names = list(names)
    more = f", … ({len(names) - most} more)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class TensorTable(nn.Module):
    """Tensors under dotted names, as trainable parameters or as buffers.

    ``nn.ParameterDict`` refuses dots, so they are stored as slashes: the state dictionary
    of a table reads ``conv1/weight``.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, trainable: bool):
        super().__init__()
        self._names = tuple(tensors)
        for name, value in tensors.items():
            key = name.replace(".", "/")
            if trainable:
                self.register_parameter(key, nn.Parameter(value))
            else:
                self.register_buffer(key, value)

    def forward(self) -> Params:
        """The tensors under their own names."""
        return {name: getattr(self, name.replace(".", "/")) for name in self._names}
