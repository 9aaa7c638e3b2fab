"""Standard deviations of weights, absolute and relative to the scale of their layer."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.inspect.marginals import quantiles
from bbh.network import fan_in
from bbh.samples import Params, Shapes, as_vector, unflatten


@dataclass(frozen=True)
class Spread:
    """Standard deviation of every weight over the draws.

    Attributes:
        stds: Standard deviation of each weight.
        fan_in: Fan-in of each tensor. 1/√fan-in is the scale of weights at which the outputs of a
            layer are about as large as its inputs.
    """

    stds: Params = field(repr=False)
    fan_in: dict[str, int] = field(repr=False)

    @staticmethod
    def of(stds: Float[Tensor, " D"], shapes: Shapes) -> "Spread":
        """Divides a vector with the standard deviations of all weights into tensors."""
        parts = unflatten(stds.cpu().unsqueeze(0), shapes)
        fans = {name: fan_in(name, shapes) for name in shapes}
        return Spread({name: part[0] for name, part in parts.items()}, fans)

    @property
    def everywhere(self) -> Float[Tensor, " D"]:
        """Standard deviations of all weights, as a vector."""
        return as_vector(self.stds)

    def relative(self, name: str) -> Tensor:
        """Standard deviations of one tensor's weights, in units of 1/√fan-in."""
        return self.stds[name] * self.fan_in[name] ** 0.5

    def numbers(self) -> dict[str, list[float] | dict[str, list[float]]]:
        """The quantiles 5 %, median and 95 % over weights, ready for JSON."""
        return {
            "quantiles": list(quantiles(self.everywhere) or ()),
            "fan_in_scales": {
                name: list(quantiles(self.relative(name)) or ()) for name in self.stds
            },
        }

    def __str__(self) -> str:
        values = self.everywhere
        middle = float(values.median())
        scaled = torch.cat([self.relative(name).flatten() for name in self.stds])
        return (
            f"spread: median standard deviation {middle:.2g} of {len(values):,} weights, "
            f"{float(scaled.median()):.2g} of the fan-in scale"
        )
