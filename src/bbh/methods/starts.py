"""Different starts for the members of an ensemble or of a mixture."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from bbh.network import partly_shared_copy

logger = logging.getLogger("bbh")

MakeNetwork = Callable[[], nn.Module]


def starts(
    network: nn.Module, number: int, make_network: MakeNetwork | None
) -> Iterator[nn.Module]:
    """Networks with which members start: the network itself, and freshly initialised ones.

    Args:
        network: The first member's network.
        number: The number of members.
        make_network: Makes the network of each further member. None copies the first one and calls
            ``reset_parameters`` on the copy's modules.
    """
    yield network
    for further in range(1, number):
        if make_network is not None:
            yield make_network()
            continue
        fresh, kept = _fresh_copy(network)
        if kept and further == 1:
            logger.warning(
                "members start with equal %s: their modules have no reset_parameters(). "
                "Pass make_network= for members that differ there too.",
                ", ".join(kept),
            )
        yield fresh


def _fresh_copy(network: nn.Module) -> tuple[nn.Module, list[str]]:
    """A copy whose modules are initialised anew, and the names of parameters that were not."""
    fresh = partly_shared_copy(network, _untouched(network))
    zero = _zero_on_purpose(fresh)
    kept: list[str] = []
    for name, module in fresh.named_modules():
        reset = _reset(module)
        if reset is not None:
            reset()
        else:
            kept += [f"{name}.{leaf}".lstrip(".") for leaf in _trainable(module)]
    for module in fresh.modules():
        _reset_adapters(module)
    with torch.no_grad():
        for value in zero:
            value.zero_()
    return fresh, kept


def _reset_adapters(module: Any) -> None:
    """Initialises the LoRA factors of a layer of peft as peft does: their product is zero."""
    reset = getattr(module, "reset_lora_parameters", None)
    if not callable(reset):
        return
    for name in module.active_adapters:
        factors = [v for n, v in module.named_parameters() if f".{name}." in f".{n}."]
        if all(one.requires_grad for one in factors):  # frozen ones are the network's own
            reset(name, True)


def _reset(module: nn.Module) -> Callable[[], object] | None:
    """What initialises this module anew; None if it has nothing to be initialised, or no way."""
    # nn.MultiheadAttention spells its method with an underscore.
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    own = _trainable(module)
    # A frozen layer keeps its weights, so it keeps its batch-norm statistics too.
    frozen = not own and any(True for _ in module.parameters(recurse=False))
    wanted = not frozen and (own or not list(module.children()))
    return reset if callable(reset) and wanted else None


def _trainable(module: nn.Module) -> list[str]:
    return [leaf for leaf, value in module.named_parameters(recurse=False) if value.requires_grad]


def _untouched(network: nn.Module) -> set[str]:
    """Names of the frozen parameters that no reset writes to: a copy need not have its own.

    A module that is initialised anew may do so with all that is inside it.
    """
    inside = {
        id(value)
        for module in network.modules()
        if _reset(module) is not None
        for value in module.parameters()
    }
    return {
        name
        for name, value in network.named_parameters()
        if not value.requires_grad and id(value) not in inside
    }


def _zero_on_purpose(network: nn.Module) -> list[nn.Parameter]:
    """Trainable matrices of zeros, which stay so in a fresh start.

    With zeros a branch begins as nothing: the second factor of a low-rank adapter, say, without
    which the adapter would change the network before it has learned anything. A network that has
    only such matrices is no such case.
    """
    matrices = [one for one in network.parameters() if one.requires_grad and one.dim() > 1]
    zero = [one for one in matrices if not one.is_meta and not one.any()]
    return zero if len(zero) < len(matrices) else []
