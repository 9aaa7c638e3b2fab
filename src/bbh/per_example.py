"""Weights that give every example of a batch its own draw, in layers that support this.

If all examples of a batch share one weight draw, they also share the noise in their gradients, and
it does not average out. For linear and convolution layers there are cheap ways to draw
independently for each example: local reparametrisation samples the layer's *outputs*, Flipout flips
signs of one perturbation per example, dropout masks the layer's *inputs*. A ``PerExampleWeight`` is
an ordinary draw together with one of these rules, a ``Perturbation``. All other operations see the
ordinary draw, so every network works.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass  # the documented way to bypass a subclass
from torch.nn import functional as F

Layer = Callable[[Tensor, Tensor], Tensor]


class Sampling(StrEnum):
    """How a training step draws Gaussian weights.

    ``WEIGHTS`` makes one draw for the whole batch; ``LOCAL`` (local reparametrisation) and
    ``FLIPOUT`` make one for each example.
    """

    WEIGHTS = "weights"
    LOCAL = "local"
    FLIPOUT = "flipout"


@dataclass(frozen=True)
class Perturbation(ABC):
    """A rule for applying a linear or convolution layer with different weights per example."""

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Perturbation":
        """The same rule with ``change`` applied to its tensors, say to move them."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: change(value) for name, value in tensors.items()})

    def draw(self, index: int | slice) -> "Perturbation":
        """The rule for one or some of the S stacked draws."""
        return self.changed(lambda tensor: tensor[index])

    @abstractmethod
    def apply(self, layer: Layer, inputs: Tensor, weight: Tensor, channel: int) -> Tensor:
        """The layer's outputs without bias.

        Args:
            layer: The linear map as a function of inputs and weight.
            inputs: A batch; its first axis holds the examples.
            weight: The ordinary draw.
            channel: The axis of inputs and outputs that holds the units.
        """


@dataclass(frozen=True)
class LocalReparametrisation(Perturbation):
    """outputs ~ N(layer(x, loc), layer(x², scale²)), Kingma, Salimans & Welling (2015).

    This is exact if each example is one vector. Positions of an image or a sequence share their
    weights, so their outputs are correlated; as is usual, this class draws independent noise for
    each position. Flipout keeps the correlation.
    """

    loc: Tensor
    scale: Tensor

    def apply(self, layer: Layer, inputs: Tensor, weight: Tensor, channel: int) -> Tensor:
        """Draws every output of every example from its Gaussian."""
        mean = layer(inputs, self.loc)
        variance = layer(inputs.square(), self.scale.square())
        # For an all-zero input the variance is zero, where the slope of the root is infinite.
        tiny = torch.finfo(variance.dtype).tiny
        return mean + variance.clamp(min=tiny).sqrt() * _noise_like(mean)


@dataclass(frozen=True)
class Flipout(Perturbation):
    """layer(x, loc) + layer(x ∘ r, weight − loc) ∘ s, random signs r and s, Wen et al. (2018)."""

    loc: Tensor

    def apply(self, layer: Layer, inputs: Tensor, weight: Tensor, channel: int) -> Tensor:
        """Applies one perturbation of the weights with different random signs per example."""
        mean = layer(inputs, self.loc)
        perturbed = layer(inputs * _signs(inputs, channel), weight - self.loc)
        return mean + perturbed * _signs(perturbed, channel)


@dataclass(frozen=True)
class InputDropout(Perturbation):
    """layer(x ∘ mask / keep, kernel) with a Bernoulli mask per example and input unit."""

    kernel: Tensor
    rate: float

    def draw(self, index: int | slice) -> "InputDropout":
        """The same rule, since all draws have the same kernel."""
        return self

    def apply(self, layer: Layer, inputs: Tensor, weight: Tensor, channel: int) -> Tensor:
        """Switches off different input units for each example."""
        mask = torch.rand(_per_example_shape(inputs, channel), device=inputs.device) >= self.rate
        return layer(inputs * mask.to(inputs.dtype) / (1 - self.rate), self.kernel)


# The axis that holds the units, and the least number of axes of a batch, for each operation.
_CHANNEL: dict[Callable[..., Any], int] = {
    F.linear: -1,
    F.conv1d: 1,
    F.conv2d: 1,
    F.conv3d: 1,
}
_BATCHED_DIMS = {F.linear: 2, F.conv1d: 3, F.conv2d: 4, F.conv3d: 5}


class PerExampleWeight(Tensor):
    """S stacked ordinary draws (or one of them) and a ``Perturbation`` for them."""

    perturbation: Perturbation

    @staticmethod
    def wrap(samples: Tensor, perturbation: Perturbation) -> "PerExampleWeight":
        """Attaches a perturbation to ordinary draws."""
        wrapped = samples.as_subclass(PerExampleWeight)
        wrapped.perturbation = perturbation
        return wrapped

    def draw(self, index: int | slice) -> "PerExampleWeight":
        """One or some of the stacked draws, with their perturbation."""
        return PerExampleWeight.wrap(self[index], self.perturbation.draw(index))

    def changed(self, change: Callable[[Tensor], Tensor]) -> "PerExampleWeight":
        """The same draws with ``change`` applied to all tensors, say to move them."""
        plain = self.as_subclass(Tensor)
        return PerExampleWeight.wrap(change(plain), self.perturbation.changed(change))

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Linear and convolution calls use the perturbation; all others the ordinary draw."""
        kwargs = dict(kwargs or {})
        if func in _CHANNEL and len(args) >= 2 and isinstance(args[1], PerExampleWeight):
            inputs, weight, *rest = args
            if not isinstance(inputs, PerExampleWeight) and inputs.dim() >= _BATCHED_DIMS[func]:
                bias = rest.pop(0) if rest else kwargs.pop("bias", None)
                return _perturbed(func, inputs, weight, bias, rest, kwargs)
        with DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def _perturbed(
    func: Callable[..., Any],
    inputs: Tensor,
    weight: PerExampleWeight,
    bias: Tensor | None,
    rest: list[Any],
    kwargs: dict[str, Any],
) -> Tensor:
    channel = _CHANNEL[func]

    def layer(values: Tensor, kernel: Tensor) -> Tensor:
        # After the bias, convolutions take stride, padding, …, and linear takes nothing.
        return func(values, kernel, None, *rest, **kwargs)

    with DisableTorchFunctionSubclass():
        plain = weight.as_subclass(Tensor)
        outputs = weight.perturbation.apply(layer, inputs, plain, channel)
        if bias is not None:
            shape = [1] * outputs.dim()
            shape[channel] = -1
            outputs = outputs + bias.as_subclass(Tensor).view(shape)
        return outputs


def _per_example_shape(tensor: Tensor, channel: int) -> list[int]:
    shape = [1] * tensor.dim()
    shape[0], shape[channel] = tensor.shape[0], tensor.shape[channel]
    return shape


def _signs(like: Tensor, channel: int) -> Tensor:
    shape = _per_example_shape(like, channel)
    return torch.randint(0, 2, shape, device=like.device).to(like.dtype) * 2 - 1


def _noise_like(values: Tensor) -> Tensor:
    """Standard normal numbers with the shape and memory layout of ``values``.

    They are drawn into a contiguous vector, since on a CPU torch is several times slower when it
    draws into any other layout.
    """
    noise = torch.randn(values.numel(), dtype=values.dtype, device=values.device)
    return noise.as_strided(values.shape, torch.empty_like(values).stride())
