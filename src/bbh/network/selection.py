"""Selects the parameters of a network that get a distribution."""

import difflib
import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, cast

from torch import Tensor, nn

from bbh import checks
from bbh.network.layers import NORMALISATIONS
from bbh.network.support import check_supported
from bbh.network.template import frozen_except
from bbh.samples import Params, Shapes

Selection = str | Iterable[str] | Callable[[str, Tensor], bool] | None


class Divided(NamedTuple):
    """A network and copies of its trainable parameters.

    Attributes:
        network: The network that was given, or a copy of it with the rest frozen.
        bayesian: The parameters that get a distribution.
        points: All other parameters, which are point estimates; none if the rest is frozen.
    """

    network: nn.Module
    bayesian: Params
    points: Params


def divide(network: nn.Module, bayesian: Selection, *, freeze_rest: bool = False) -> Divided:
    """Divides the trainable parameters as ``select_bayesian`` chooses, in the network's order.

    Args:
        network: Any module; it is not changed.
        bayesian: Which parameters get a distribution.
        freeze_rest: Whether all others keep their values instead of being trained.
    """
    check_supported(network)
    chosen = set(select_bayesian(network, bayesian))
    network = frozen_except(network, chosen) if freeze_rest else network
    divided = Divided(network, {}, {})
    for name, value in trainable_parameters(network).items():
        part = divided.bayesian if name in chosen else divided.points
        part[name] = value.detach().clone()
    return divided


def trainable_parameters(network: nn.Module) -> Params:
    """The network's parameters with ``requires_grad``; tied parameters appear once."""
    return {name: value for name, value in network.named_parameters() if value.requires_grad}


def select_bayesian(network: nn.Module, bayesian: Selection) -> list[str]:
    """Names of the parameters that get a distribution, in the network's order.

    Args:
        network: Any module. Frozen parameters (``requires_grad=False``) are never selected.
        bayesian: Names, module names or glob patterns, or a predicate of name and tensor.
            ``None`` takes every trainable parameter except those of normalisation layers,
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
        names = _Names(network)
        patterns = _patterns(bayesian)
        chosen = set[str]().union(*(_match(pattern, names, trainable) for pattern in patterns))
    if not chosen:
        raise ValueError(
            f"bayesian={bayesian!r} selects no trainable parameter. "
            f"Trainable here: {_listing(trainable)}."
        )
    return [name for name in trainable if name in chosen]


def _patterns(bayesian: object) -> list[str]:
    given = (
        [bayesian] if isinstance(bayesian, str) or not isinstance(bayesian, Iterable) else bayesian
    )
    patterns = list(cast(Iterable[object], given))
    for one in patterns:
        checks.instance("bayesian", one, str, 'give names as strings, e.g. "2" for module 2')
    return cast(list[str], patterns)


def _normalisation_names(network: nn.Module) -> set[str]:
    return {
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in network.named_modules()
        if isinstance(module, NORMALISATIONS)
        for name, _ in module.named_parameters(recurse=False)
    }


class _Names(dict[str, str]):
    """The name of every parameter by each of its names: a tied weight has several."""

    def __init__(self, network: nn.Module):
        first = {id(value): name for name, value in network.named_parameters()}
        everything = network.named_parameters(remove_duplicate=False)
        super().__init__({name: first[id(value)] for name, value in everything})


def _match(pattern: str, names: _Names, trainable: Mapping[str, Tensor]) -> set[str]:
    if pattern in names:  # a stored posterior names all its parameters, which may be thousands
        matched = {names[pattern]}
    else:
        matched = {
            canonical
            for name, canonical in names.items()
            if fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")
        }
    if not matched:
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


def fan_in(name: str, shapes: Shapes) -> int:
    """The number of inputs that one output of this tensor sums over; for a bias, its weight's.

    >>> import torch
    >>> shapes = {"fc.weight": torch.Size([10, 500]), "fc.bias": torch.Size([10])}
    >>> fan_in("fc.weight", shapes), fan_in("fc.bias", shapes)
    (500, 500)
    """
    shape = shapes[name]
    if len(shape) < 2:
        module, _, leaf = name.rpartition(".")
        sibling = f"{module}.{leaf.replace('bias', 'weight')}".lstrip(".")
        # A vector without a kernel (the scale of a normalisation layer, say) counts its own size.
        shape = shapes.get(sibling, shape)
    return max(1, math.prod(shape[1:]) if len(shape) > 1 else math.prod(shape))
