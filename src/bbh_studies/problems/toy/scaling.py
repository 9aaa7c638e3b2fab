"""A network whose layers see standardised data, while it is used in the data's own units."""

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Scaling:
    """The scale on which layers see inputs and targets; by default that of the data themselves.

    Attributes:
        input_mean: The input that is 0 for the layers.
        input_scale: The difference between two inputs that is 1 for the layers.
        target_mean: The target that is 0 for the layers.
        target_scale: The difference between two targets that is 1 for the layers.
    """

    input_mean: float = 0.0
    input_scale: float = 1.0
    target_mean: float = 0.0
    target_scale: float = 1.0

    @staticmethod
    def of(inputs: Tensor, targets: Tensor) -> "Scaling":
        """The scaling by which these inputs and targets have mean 0 and standard deviation 1."""
        return Scaling(*_moments(inputs), *_moments(targets))

    def inputs(self, raw: Tensor) -> Tensor:
        """Inputs as the layers see them."""
        return (raw - self.input_mean) / self.input_scale

    def targets(self, raw: Tensor) -> Tensor:
        """Targets as the layers see them."""
        return (raw - self.target_mean) / self.target_scale

    def outputs(self, scaled: Tensor) -> Tensor:
        """The layers' outputs in the units of the targets."""
        return self.target_mean + self.target_scale * scaled


class Scaled(nn.Sequential):
    """Layers on a scale of their own, as one network from raw inputs to raw outputs.

        f(x) = m_y + s_y · layers((x − m_x) / s_x)

    A Gaussian likelihood with noise σ around f is, up to a constant, one with noise σ/s_y around
    the layers' outputs and standardised targets. So the layers have the posterior that they have on
    standardised data, while predictions, noise and metrics stay in the data's units.
    """

    def __init__(self, scaling: Scaling, *layers: nn.Module):
        super().__init__(*layers)
        self.scaling = scaling

    def forward(self, input: Tensor) -> Tensor:
        """Outputs in the units of the targets, for inputs in their own."""
        return self.scaling.outputs(super().forward(self.scaling.inputs(input)))


def _moments(values: Tensor) -> tuple[float, float]:
    return values.mean().item(), values.std(correction=0).item()
