"""The network of an estimator: the default one, or the user's."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from bbh import checks
from bbh.posterior import Posterior
from bbh.prediction.draws import evaluation_mode

MakeNetwork = Callable[[int, int], nn.Module]


def multi_layer_perceptron(sizes: Sequence[int]) -> nn.Module:
    """Fully connected layers with ReLU between them, in double precision.

    In double precision, as everything in scikit-learn: the prediction for a row then does not
    depend on the rows that are predicted with it, and two equal rows count as one of weight 2.

    Args:
        sizes: The number of inputs, the widths of the hidden layers, the number of outputs.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


@dataclass(frozen=True)
class Blueprint:
    """All that is needed to build an estimator's network again, when the estimator is unpickled.

    Args:
        network: A network, a function of (inputs, outputs) that makes one, or None for the default
            network.
        hidden_layer_sizes: Widths of the hidden layers of the default network.
        num_inputs: The number of columns.
        num_outputs: The number of outputs that the likelihood needs.
    """

    network: Any
    hidden_layer_sizes: tuple[int, ...]
    num_inputs: int
    num_outputs: int

    def __post_init__(self):
        if self.network is not None and not isinstance(self.network, nn.Module):
            example = "lambda inputs, outputs: torch.nn.Linear(inputs, outputs)"
            checks.function("network", self.network, example)

    def build(self) -> nn.Module:
        """The network, with new initial weights unless it is a network of the user's."""
        if isinstance(self.network, nn.Module):
            return self.network
        if self.network is None:
            sizes = (self.num_inputs, *self.hidden_layer_sizes, self.num_outputs)
            return multi_layer_perceptron(sizes)
        made = self.network(self.num_inputs, self.num_outputs)
        checks.instance("network(inputs, outputs)", made, nn.Module, "return a torch.nn.Module")
        return made


def as_widths(hidden_layer_sizes: Any) -> tuple[int, ...]:
    """Widths of the hidden layers; a single number is one layer, as elsewhere in scikit-learn."""
    several = isinstance(hidden_layer_sizes, Iterable)
    widths: tuple[Any, ...] = tuple(hidden_layer_sizes) if several else (hidden_layer_sizes,)
    for width in widths:
        checks.whole("hidden_layer_sizes", width, 1, "give positive layer widths")
    return widths


def dtype_of(network: nn.Module) -> torch.dtype:
    """The type of number that a network computes with: that of its parameters."""
    floating = (one.dtype for one in network.parameters() if one.is_floating_point())
    return next(floating, torch.get_default_dtype())


def check_outputs(posterior: Posterior[Any], inputs: Tensor, num_outputs: int) -> None:
    """Raises unless the network has as many outputs per row as the targets need."""
    with evaluation_mode(posterior), torch.no_grad():
        found = list(posterior(inputs, posterior.sample(1)).shape[1:])
    wanted = [len(inputs), num_outputs]
    if found != wanted:
        raise ValueError(
            f"the network's outputs for inputs {list(inputs.shape)} are {found}; {wanted} are "
            "needed: one row for each input, and a column for each class or target (two for each "
            "target if the likelihood is HeteroscedasticGaussian)."
        )
