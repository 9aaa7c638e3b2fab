"""Templates: a network's structure without values, called with weights as arguments."""

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bbh.batches import Inputs
from bbh.samples import Params, Shapes

# How to call a network: it gives a tensor, or an object or dictionary with ``logits``.
Forward = Callable[[nn.Module, Inputs], Any]


def call_network(network: nn.Module, inputs: Inputs) -> Any:
    """Calls a network in the default way: tuples and dictionaries are spread over its arguments."""
    if isinstance(inputs, Mapping):
        return network(**cast(Mapping[str, Any], inputs))
    # Subclasses of tuple are excluded: a PackedSequence is a named tuple, but one argument.
    if type(inputs) in (tuple, list):
        return network(*inputs)
    return network(inputs)


class Call(nn.Module):
    """A network and the function that calls it, as one module.

    ``functional_call`` then replaces the weights while the user's ``forward`` function runs.
    """

    def __init__(self, network: nn.Module, how: Forward):
        super().__init__()
        self.network = network
        self.how = how
        self._tied = _num_names(self, remove_duplicate=False) > _num_names(self)
        self._names = {name for name, _ in (*self.named_parameters(), *self.named_buffers())}
        self._recurrent = [one for one in network.modules() if isinstance(one, nn.RNNBase)]

    def run(self, values: Params, inputs: Inputs) -> Tensor:
        """The outputs with these values in place of the network's own.

        Args:
            values: All parameters and buffers, named ``network.…``.
            inputs: What the network is called with.
        """
        # ``strict`` and ``tie_weights`` would look for all names anew in every call.
        if values.keys() != self._names:
            wrong = sorted(values.keys() ^ self._names)
            raise KeyError(f"the values lack some of the network's names or have others: {wrong}.")
        try:
            return functional_call(self, values, (inputs,), tie_weights=self._tied)
        finally:
            # Recurrent layers keep a list of the weights of their last call. It would hold the
            # draw in memory, and with it all that its gradient needs.
            for layer in self._recurrent:
                layer._update_flat_weights()  # pyright: ignore[reportPrivateUsage]

    def forward(self, inputs: Inputs) -> Tensor:
        """The network's outputs: the tensor it returns, or the logits among what it returns."""
        outputs = self.how(self.network, inputs)
        tensor = _tensor_of(outputs)
        if tensor is None:
            raise TypeError(
                f"{type(self.network).__name__} returned {_described(outputs)}, not a tensor and "
                "nothing with logits. Say which part to use, e.g. "
                "forward=lambda network, inputs: network(inputs)[0]."
            )
        return tensor


def _num_names(module: nn.Module, remove_duplicate: bool = True) -> int:
    """How many names parameters and buffers have; tied ones have several."""
    tables = (module.named_parameters, module.named_buffers)
    return sum(len(list(table(remove_duplicate=remove_duplicate))) for table in tables)


def _tensor_of(outputs: object) -> Tensor | None:
    """The outputs if they are a tensor, else their ``logits``; None if there are none.

    Models of Hugging Face return their logits in an object, which is also a mapping, together with
    whatever else they were asked for.
    """
    if isinstance(outputs, Mapping):
        outputs = cast(Mapping[str, Any], outputs).get("logits")
    elif not isinstance(outputs, Tensor):
        outputs = getattr(outputs, "logits", None)
    return outputs if isinstance(outputs, Tensor) else None


def _described(outputs: object) -> str:
    """The class of the outputs, and the names in them if they have names."""
    kind = type(outputs).__name__
    if not isinstance(outputs, Mapping):
        return kind
    return f"{kind} with {', '.join(map(repr, cast(Mapping[str, Any], outputs)))}"


def template(network: nn.Module) -> nn.Module:
    """A copy of the network on the meta device, without values; tied parameters stay tied."""
    stand_ins: dict[int, Any] = {
        id(value): nn.Parameter(torch.empty_like(value, device="meta"), value.requires_grad)
        for value in network.parameters()
    }
    stand_ins |= {id(value): torch.empty_like(value, device="meta") for value in network.buffers()}
    return _copy(network, stand_ins)


def frozen_except(network: nn.Module, trained: Collection[str]) -> nn.Module:
    """A copy in which only the named parameters are trainable, and all else is in eval mode.

    Only modules that own a trainable parameter are in training mode, so a batch norm elsewhere
    keeps its statistics and dropout is off. The copy shares the network's values.
    """
    frozen = with_trainable(network, trained).eval()
    for module in frozen.modules():
        module.training = any(value.requires_grad for value in module.parameters(recurse=False))
    return frozen


def with_trainable(network: nn.Module, trained: Collection[str]) -> nn.Module:
    """A copy that shares the network's values, in which only the named parameters are trainable."""
    stand_ins: dict[int, Any] = {
        id(value): nn.Parameter(value.detach(), name in trained)
        for name, value in network.named_parameters()
    }
    return _copy(network, stand_ins | {id(value): value for value in network.buffers()})


def partly_shared_copy(network: nn.Module, shared: Collection[str]) -> nn.Module:
    """A copy of the network that has the named parameters in common with it."""
    return _copy(
        network, {id(value): value for name, value in network.named_parameters() if name in shared}
    )


def _copy(network: nn.Module, stand_ins: dict[int, Any]) -> nn.Module:
    """A copy of the network that has the stand-ins in place of tensors, given by their ids."""
    try:
        return copy.deepcopy(network, stand_ins)
    except RuntimeError as error:
        raise TypeError(
            f"{type(network).__name__} cannot be copied: {error} A common cause is the old "
            "torch.nn.utils.weight_norm or spectral_norm: use the ones in "
            "torch.nn.utils.parametrizations."
        ) from error


def padding_rows(network: nn.Module, shapes: Shapes) -> Params:
    """The padding rows of embeddings, which keep the network's own value in every draw.

    Data never influence a padding row, so sampled values of it would come from the prior alone. A
    matrix that is also used elsewhere (a tied output layer) does learn this row and is left out.
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
