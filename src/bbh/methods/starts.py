"""Different starts for the members of an ensemble or of a mixture."""

import copy
import logging
from collections.abc import Callable, Iterator

from torch import nn

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
    fresh = copy.deepcopy(network)
    kept: list[str] = []
    for name, module in fresh.named_modules():
        own = [
            leaf for leaf, value in module.named_parameters(recurse=False) if value.requires_grad
        ]
        # nn.MultiheadAttention spells its method with an underscore.
        reset = getattr(module, "reset_parameters", None) or getattr(
            module, "_reset_parameters", None
        )
        # A frozen layer keeps its weights, so it keeps its batch-norm statistics too.
        frozen = not own and any(True for _ in module.parameters(recurse=False))
        if callable(reset) and not frozen and (own or not list(module.children())):
            reset()
        elif own:
            kept += [f"{name}.{leaf}".lstrip(".") for leaf in own]
    return fresh, kept
