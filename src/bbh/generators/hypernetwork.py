"""The network that turns noise into weights: hidden layers, and one output layer for all slices."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from bbh.generators.factored.gradients import collects_factors, is_large, outer_linear

# vectors, matrix → vectors @ matrixᵀ
Multiply = Callable[[Tensor, Tensor], Tensor]

# Rows in each piece of a batched matrix product, see ``_outputs_of_alike``.
_ROWS = 256


@dataclass(frozen=True)
class Head:
    """What one hypernetwork generates.

    A hypernetwork may make its weights in several slices, and a one-hot code tells it which slice.

    Attributes:
        names: The tensors it generates, one after the other.
        num_weights: The number of weights in all these tensors together.
        outputs: The number of weights in one slice.
        group: Index of the noise vector it reads.
    """

    names: tuple[str, ...]
    num_weights: int
    outputs: int
    group: int

    @property
    def slices(self) -> int:
        """The number of slices that make all weights; the last slice may be shorter."""
        return -(-self.num_weights // self.outputs)


class Hypernetwork(nn.Module):
    """[z, onehot(slice)] → leaky-ReLU layers → ``outputs`` weights, for all slices at once.

    Args:
        head: The tensors to generate.
        noise_dim: Size of z.
        hidden: Widths of the hidden layers.
        slope: Negative slope of the leaky ReLU.
        bias_per_weight: Whether every weight has its own output bias, instead of biases that all
            slices share.
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
        # Factor on the last hidden layer, which ``FromNetwork`` sets.
        self.register_buffer("gain", torch.ones(()))
        # Not initialised here: ``Initialization`` fills it, and drawing up to 200 million random
        # numbers twice would be slow.
        self.output_weight = nn.Parameter(torch.empty(head.outputs, hidden[-1]))
        self.output_bias = nn.Parameter(
            torch.zeros(head.num_weights if bias_per_weight else head.outputs)
        )

    gain: Tensor

    def forward(self, noise: Float[Tensor, "S Z"]) -> Float[Tensor, "S weights"]:
        """Generates all weights of the head, slice after slice."""
        return self.outputs(self.gain * self.features(noise))

    def outputs(self, features: Float[Tensor, "S slices hidden"]) -> Float[Tensor, "S weights"]:
        """Applies the output layer to the features of all slices."""
        if self.head.slices == 1:
            return outer_linear(features[:, 0], self.output_weight, self.output_bias)
        bias = None if self.bias_per_weight else self.output_bias
        whole, rest = divmod(self.head.num_weights, self.head.outputs)
        weights = F.linear(features[:, :whole], self.output_weight, bias).flatten(1)
        if rest:
            short_bias = None if bias is None else bias[:rest]
            tail = F.linear(features[:, whole], self.output_weight[:rest], short_bias)
            weights = torch.cat([weights, tail], dim=1)
        return weights + self.output_bias if self.bias_per_weight else weights

    def output_gram(
        self, moved: Float[Tensor, "S Z slices hidden"], multiply: Multiply
    ) -> Float[Tensor, "S Z Z"]:
        """JᵀJ of the weights, where J = W · moved.

        Args:
            moved: Derivatives of the last hidden layer by each dimension of the noise.
            multiply: The function that multiplies vectors with the output matrix.
        """
        rest = self.head.num_weights % self.head.outputs
        if not rest:
            return _gram_of_products(moved, self.output_weight, multiply)
        # The last slice uses only the first rows of the matrix.
        whole, tail = moved[:, :, :-1], moved[:, :, -1:]
        gram = _gram_of_products(tail, self.output_weight[:rest], multiply)
        return gram + _gram_of_products(whole, self.output_weight, multiply)

    def features(
        self, noise: Float[Tensor, "S Z"], first: int = 0, last: int | None = None
    ) -> Float[Tensor, "S slices hidden"]:
        """The last hidden layer, for the slices from ``first`` up to ``last``."""
        start, *others = self.layers
        assert isinstance(start, nn.Linear)
        # The product of a matrix with a one-hot code is one of its columns, so it is looked up and
        # added to the product with z.
        codes = start.weight[:, self.noise_dim :].T[first:last] + start.bias
        inputs = F.linear(noise, start.weight[:, : self.noise_dim])
        features = F.leaky_relu(inputs.unsqueeze(1) + codes, self.slope)
        for layer in others:
            features = F.leaky_relu(layer(features), self.slope)
        return features


def _gram_of_products(
    vectors: Float[Tensor, "S Z slices hidden"],
    matrix: Float[Tensor, "rows hidden"],
    multiply: Multiply,
) -> Float[Tensor, "S Z Z"]:
    """Inner products of matrix · vectors of a draw, for all pairs of noise dimensions.

    Many vectors are multiplied with the matrix WᵀW, whose size is that of the hidden layer. Only
    if there are so few that all products together are smaller than the matrix W are these computed,
    and also if the optimizer collects factors of the gradient, which WᵀW does not have.
    """
    few = vectors[..., 0].numel() < matrix.shape[1]
    if few or collects_factors(matrix):
        left = right = multiply(vectors.flatten(0, 2), matrix).view(*vectors.shape[:2], -1)
    else:
        left, right = vectors.flatten(2), (vectors @ (matrix.T @ matrix)).flatten(2)
    return left @ right.mT


def features_together(
    hypernetworks: list[Hypernetwork], noise: Float[Tensor, "G S Z"]
) -> Float[Tensor, "G S hidden"]:
    """Last hidden layers, times gains, of hypernetworks with equal hidden layers and one slice.

    The result equals ``gain * features(noise)`` of each, but many small matrix products become one
    batched product, which is faster. The weights are the first factor in these products, so that
    their gradients have the layout of the weights and need no copy.
    """
    (weight, bias), *others = _stacked_layers(hypernetworks)
    # With a single slice the one-hot code is always 1, so its column acts as a bias.
    constant = (weight[:, :, -1] + bias).unsqueeze(2)
    slope = hypernetworks[0].slope
    features = F.leaky_relu(torch.baddbmm(constant, weight[:, :, :-1], noise.mT), slope)
    for weight, bias in others:
        features = F.leaky_relu(torch.baddbmm(bias.unsqueeze(2), weight, features), slope)
    return (features * torch.stack([one.gain for one in hypernetworks]).view(-1, 1, 1)).mT


def moved_features(
    hypernetworks: list[Hypernetwork], noise: Float[Tensor, "G S Z"]
) -> Float[Tensor, "G S Z slices hidden"]:
    """Derivatives of last hidden layers by z, times gains, for hidden layers of equal shapes.

    A leaky ReLU is linear on either side of zero. So the derivative of a layer is its matrix, with
    the rows of units below zero multiplied by the slope. Which units these are has no gradient.
    """
    (weight, bias), *others = _stacked_layers(hypernetworks)
    slope, dim = hypernetworks[0].slope, noise.shape[2]
    by_noise, by_slice = weight.split([dim, weight.shape[2] - dim], dim=2)
    # Units are the second axis, then come draws and slices; derivatives have z's axis before these.
    with torch.no_grad():
        inputs = (by_noise @ noise.mT).unsqueeze(3) + (by_slice + bias.unsqueeze(2)).unsqueeze(2)
        features = F.leaky_relu(inputs, slope)
    places = features.shape[2:]
    moved = by_noise[..., None, None] * _slopes(features, slope)
    for weight, bias in others:
        with torch.no_grad():
            inputs = torch.baddbmm(bias.unsqueeze(2), weight, features.flatten(2))
            features = F.leaky_relu(inputs, slope).unflatten(2, places)
        moved = torch.bmm(weight, moved.flatten(2)).unflatten(2, (dim, *places))
        moved = moved * _slopes(features, slope)
    gains = torch.stack([one.gain for one in hypernetworks]).view(-1, 1, 1, 1, 1)
    return (moved * gains).permute(0, 3, 2, 4, 1)


def _slopes(
    features: Float[Tensor, "G hidden S slices"], slope: float
) -> Float[Tensor, "G hidden 1 S slices"]:
    """One above zero, else the slope of the leaky ReLU."""
    one = features.new_ones(())
    return torch.where(features > 0, one, slope * one).unsqueeze(2)


def outputs_together(
    hypernetworks: list[Hypernetwork], features: Float[Tensor, "G S hidden"]
) -> list[Float[Tensor, "S weights"]]:
    """Generates the weights of hypernetworks with one slice from their last hidden layers.

    The result equals ``outputs`` of each. Small output layers of equal size are stacked and become
    one batched product: a deep network has about ten of each size, and copying them into a stack
    costs less than twenty more operations.
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
    # The product is divided into pieces with few rows: the gradient of the features is a sum over
    # rows, and libraries add up tens of thousands of rows one after the other.
    pieces = rows // _ROWS if rows % _ROWS == 0 else 1
    inputs = features.mT.unsqueeze(1).expand(-1, pieces, -1, -1).flatten(0, 1)
    # The matrix is the first factor, so that its gradient has the layout of the matrix. The bias is
    # added after the product, because mixed precision rounds the arguments of the product.
    weights = torch.bmm(weight.view(groups * pieces, -1, hidden), inputs)
    # The weights of a draw are contiguous in memory, as the following kernels need them.
    return (weights.view(groups, rows, -1) + bias.unsqueeze(2)).mT.contiguous()


def _stacked_layers(hypernetworks: list[Hypernetwork]) -> list[tuple[Tensor, Tensor]]:
    """Weights [G, outputs, inputs] and biases [G, outputs] of every hidden layer."""
    return [
        (torch.stack([layer.weight for layer in layers]), torch.stack([one.bias for one in layers]))
        for layers in zip(*(_linear_layers(one) for one in hypernetworks), strict=True)
    ]


def _linear_layers(hypernetwork: Hypernetwork) -> list[nn.Linear]:
    return [cast(nn.Linear, layer) for layer in hypernetwork.layers]


def num_parameters(
    head: Head, noise_dim: int, hidden: tuple[int, ...], bias_per_weight: bool
) -> int:
    """The number of parameters of one hypernetwork, without building it."""
    widths = (noise_dim + head.slices, *hidden)
    trunk = sum((a + 1) * b for a, b in zip(widths, hidden, strict=False))
    bias = head.num_weights if bias_per_weight else head.outputs
    return trunk + hidden[-1] * head.outputs + bias
