"""A network without values: its structure, to be called with weights that come as arguments."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from bbh.batches import Inputs
from bbh.samples import Params, Shapes

Forward = Callable[[nn.Module, Inputs], Tensor]


def call_network(network: nn.Module, inputs: Inputs) -> Tensor:
    """The default way to call a network: tuples and dictionaries are its arguments."""
    if isinstance(inputs, Mapping):
        return network(**cast(Mapping[str, Any], inputs))
    # Not a subclass: a packed sequence is a named tuple and one argument.
    if type(inputs) in (tuple, list):
        return network(*inputs)
    return network(inputs)


class Call(nn.Module):
    """The network with the way to call it, so that an adapter runs inside functional_call."""

    def __init__(self, network: nn.Module, how: Forward):
        super().__init__()
        self.network = network
        self.how = how

    def forward(self, inputs: Inputs) -> Tensor:
        """Outputs, which must be one tensor."""
        outputs = self.how(self.network, inputs)
        if not isinstance(outputs, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"{type(self.network).__name__} returned {type(outputs).__name__}, not a tensor. "
                "Say which part to use, e.g. forward=lambda network, inputs: network(inputs)[0]."
            )
        return outputs


def template(network: nn.Module) -> nn.Module:
    """A copy on the meta device. Ties between parameters stay ties: one tensor, one stand-in."""
    stand_ins: dict[int, Any] = {
        id(value): nn.Parameter(torch.empty_like(value, device="meta"), value.requires_grad)
        for value in network.parameters()
    }
    stand_ins |= {id(value): torch.empty_like(value, device="meta") for value in network.buffers()}
    try:
        return copy.deepcopy(network, stand_ins)
    except RuntimeError as error:
        raise TypeError(
            f"{type(network).__name__} cannot be copied: {error} A common cause is the old "
            "torch.nn.utils.weight_norm or spectral_norm: use the ones in "
            "torch.nn.utils.parametrizations."
        ) from error


def padding_rows(network: nn.Module, shapes: Shapes) -> Params:
    """Rows of embeddings that stand for no token: no data ever reach them, only the prior would.

    They keep the network's own value in every draw. A matrix that serves elsewhere too (a tied
    output layer) does learn that row and is left alone.
    """
    names = [id(value) for _, value in network.named_parameters(remove_duplicate=False)]
    rows: Params = {}
    for prefix, module in network.named_modules():
        name = f"{prefix}.weight".lstrip(".")
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and name in shapes:
            shared = names.count(id(module.weight)) > 1
            if module.padding_idx is not None and not shared:
                rows[name] = module.weight[module.padding_idx].detach().clone()
    return rows
