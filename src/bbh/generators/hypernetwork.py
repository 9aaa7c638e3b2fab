"""The network that turns noise into weights: one trunk, one output layer, any number of slices."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from bbh.generators.factored.gradients import is_large, outer_linear

# Of one piece of a product of many.
_ROWS = 256


@dataclass(frozen=True)
class Head:
    """The job of one hypernetwork.

    Attributes:
        names: The tensors it fills, one after the other.
        num_weights: How many weights they have together.
        outputs: How many weights one call makes; several calls differ by a one-hot code.
        group: Which noise vector it reads.
    """

    names: tuple[str, ...]
    num_weights: int
    outputs: int
    group: int

    @property
    def slices(self) -> int:
        """Calls needed to make every weight once; the last may be a shorter one."""
        return -(-self.num_weights // self.outputs)


class Hypernetwork(nn.Module):
    """[z, onehot(slice)] → leaky-ReLU layers → ``outputs`` weights, for all slices at once.

    Args:
        head: What to generate.
        noise_dim: Size of z.
        hidden: Widths of the hidden layers.
        slope: Negative slope of the leaky ReLU.
        bias_per_weight: An output bias for every weight, instead of one shared by all slices.
    """

    def __init__(
        self,
        head: Head,
        noise_dim: int,
        hidden: tuple[int, ...],
        slope: float,
        bias_per_weight: bool,
    ):
        super().__init__()
        self.head = head
        self.noise_dim = noise_dim
        self.slope = slope
        self.bias_per_weight = bias_per_weight
        widths = (noise_dim + head.slices, *hidden)
        self.layers = nn.ModuleList(
            nn.Linear(inputs, outputs) for inputs, outputs in zip(widths, hidden, strict=False)
        )
        # Multiplies the last hidden layer; see the initialisations.
        self.register_buffer("gain", torch.ones(()))
        # Left unset: an initialisation fills them, and drawing 200 million numbers twice is slow.
        self.output_weight = nn.Parameter(torch.empty(head.outputs, hidden[-1]))
        self.output_bias = nn.Parameter(
            torch.zeros(head.num_weights if bias_per_weight else head.outputs)
        )

    gain: Tensor

    def forward(self, noise: Float[Tensor, "S Z"]) -> Float[Tensor, "S weights"]:
        """All weights of the head, slice after slice; every output is used exactly once."""
        return self.outputs(self.gain * self.features(noise))

    def outputs(self, features: Float[Tensor, "S slices hidden"]) -> Float[Tensor, "S weights"]:
        """The output layer, for all slices."""
        if self.head.slices == 1:
            return outer_linear(features[:, 0], self.output_weight) + self.output_bias
        bias = None if self.bias_per_weight else self.output_bias
        whole, rest = divmod(self.head.num_weights, self.head.outputs)
        weights = F.linear(features[:, :whole], self.output_weight, bias).flatten(1)
        if rest:
            short_bias = None if bias is None else bias[:rest]
            tail = F.linear(features[:, whole], self.output_weight[:rest], short_bias)
            weights = torch.cat([weights, tail], dim=1)
        return weights + self.output_bias if self.bias_per_weight else weights

    def features(
        self, noise: Float[Tensor, "S Z"], first: int = 0, last: int | None = None
    ) -> Float[Tensor, "S slices hidden"]:
        """Last hidden layer for the slices from ``first`` to ``last``."""
        start, *others = self.layers
        assert isinstance(start, nn.Linear)
        # A product with a one-hot code is a look-up: z and code enter as one sum.
        codes = start.weight[:, self.noise_dim :].T[first:last] + start.bias
        inputs = F.linear(noise, start.weight[:, : self.noise_dim])
        features = F.leaky_relu(inputs.unsqueeze(1) + codes, self.slope)
        for layer in others:
            features = F.leaky_relu(layer(features), self.slope)
        return features


def features_together(
    hypernetworks: list[Hypernetwork], noise: Float[Tensor, "G S Z"]
) -> Float[Tensor, "G S hidden"]:
    """Last hidden layers, times their gains, of hypernetworks that are alike and make one slice.

    The same as ``gain * features(noise)`` of each: eight small products are one larger. Matrices
    come first in them, so that their gradients have their own layout and need no copies.
    """
    first, *others = (
        (torch.stack([layer.weight for layer in layers]), torch.stack([one.bias for one in layers]))
        for layers in zip(*(_linear_layers(one) for one in hypernetworks), strict=True)
    )
    weight, bias = first
    # The code of an only slice is a constant one.
    constant = (weight[:, :, -1] + bias).unsqueeze(2)
    slope = hypernetworks[0].slope
    features = F.leaky_relu(torch.baddbmm(constant, weight[:, :, :-1], noise.mT), slope)
    for weight, bias in others:
        features = F.leaky_relu(torch.baddbmm(bias.unsqueeze(2), weight, features), slope)
    return (features * torch.stack([one.gain for one in hypernetworks]).view(-1, 1, 1)).mT


def outputs_together(
    hypernetworks: list[Hypernetwork], features: Float[Tensor, "G S hidden"]
) -> list[Float[Tensor, "S weights"]]:
    """Weights of hypernetworks that make one slice, from their last hidden layers.

    The same as ``outputs`` of each. Small output layers of one size are one product: a deep network
    has ten of each, and copying them side by side costs less than twenty more operations.
    """
    alike: dict[Any, list[int]] = {}
    for index, one in enumerate(hypernetworks):
        alone = is_large(one.output_weight)
        alike.setdefault((index,) if alone else one.head.outputs, []).append(index)
    each = features.unbind()
    made: dict[int, Tensor] = {}
    for indices in alike.values():
        group = [hypernetworks[index] for index in indices]
        inputs = [each[index] for index in indices]
        if len(group) == 1:
            weights = [group[0].outputs(inputs[0].unsqueeze(1))]
        else:
            weights = _outputs_of_alike(group, torch.stack(inputs)).unbind()
        made |= dict(zip(indices, weights, strict=True))
    return [made[index] for index in range(len(hypernetworks))]


def _outputs_of_alike(
    hypernetworks: list[Hypernetwork], features: Float[Tensor, "G S hidden"]
) -> Float[Tensor, "G S weights"]:
    weight = torch.stack([one.output_weight for one in hypernetworks])
    bias = torch.stack([one.output_bias for one in hypernetworks])
    groups, rows, hidden = weight.shape
    # In pieces of few rows: the features' gradient is a sum over rows, and libraries sum tens of
    # thousands of them one after the other.
    pieces = rows // _ROWS if rows % _ROWS == 0 else 1
    inputs = features.mT.unsqueeze(1).expand(-1, pieces, -1, -1).flatten(0, 1)
    # The matrix first, so that its gradient comes in its own layout. The bias outside of the
    # product, which mixed precision rounds.
    weights = torch.bmm(weight.view(groups * pieces, -1, hidden), inputs)
    # Every draw in a row, as kernels want it.
    return (weights.view(groups, rows, -1) + bias.unsqueeze(2)).mT.contiguous()


def _linear_layers(hypernetwork: Hypernetwork) -> list[nn.Linear]:
    return [cast(nn.Linear, layer) for layer in hypernetwork.layers]


def num_parameters(
    head: Head, noise_dim: int, hidden: tuple[int, ...], bias_per_weight: bool
) -> int:
    """Parameters of one hypernetwork, without building it."""
    widths = (noise_dim + head.slices, *hidden)
    trunk = sum((a + 1) * b for a, b in zip(widths, hidden, strict=False))
    bias = head.num_weights if bias_per_weight else head.outputs
    return trunk + hidden[-1] * head.outputs + bias
