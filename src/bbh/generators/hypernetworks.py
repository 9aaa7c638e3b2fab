"""The paper's generators: hypernetworks whose output units are the weights themselves."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from bbh import checks
from bbh.generators.base import Generator, fan_in_scale
from bbh.generators.factored.gradients import outer_linear
from bbh.generators.hypernetwork import (
    Head,
    Hypernetwork,
    features_together,
    moved_features,
    num_parameters,
    outputs_together,
)
from bbh.generators.initialization import (
    FromNetwork,
    Initialization,
    initialization_is_skipped,
)
from bbh.generators.module import GeneratorModule
from bbh.noise import GaussianNoise
from bbh.samples import Params, Shapes, unflatten_parts


class Hypernetworks(GeneratorModule):
    """Maps noise [S, G, Z] to weights {name: [S, *shape]}, with one hypernetwork per head."""

    def __init__(self, shapes: Shapes, hypernetworks: list[Hypernetwork]):
        super().__init__()
        self.shapes = shapes
        self.hypernetworks = nn.ModuleList(hypernetworks)
        self.num_groups = 1 + max(one.head.group for one in hypernetworks)

    def groups(self) -> list[tuple[str, ...]]:
        """For each noise vector, the names of the tensors generated from it."""
        names: dict[int, tuple[str, ...]] = {}
        for one in self._all():
            names[one.head.group] = (*names.get(one.head.group, ()), *one.head.names)
        return list(names.values())

    def factored_parameters(self) -> list[nn.Parameter]:
        """Output matrices whose gradient is a sum of a few outer products, one for each draw."""
        return [one.output_weight for one in self._all() if one.head.slices == 1]

    def forward(self, noise: Float[Tensor, "S G Z"]) -> Params:
        """Generates all weights of all tensors."""
        hypernetworks = self._all()
        if all(one.head.slices == 1 for one in hypernetworks):
            groups = [noise[:, one.head.group] for one in hypernetworks]
            features = features_together(hypernetworks, torch.stack(groups))
            made = outputs_together(hypernetworks, features)
        else:
            made = [one(noise[:, one.head.group]) for one in hypernetworks]
        shapes = [{name: self.shapes[name] for name in one.head.names} for one in hypernetworks]
        return unflatten_parts(zip(made, shapes, strict=True))

    def jacobian_gram(self, noise: Float[Tensor, "S G Z"]) -> Float[Tensor, "S G Z Z"]:
        """JᵀJ for each noise vector z, from derivatives of the last hidden layers alone.

        Output layers are linear: J = W ∂h/∂z.
        """
        # Mixed precision would round small directions away, so it is switched off here. Its dense
        # gradients must stay dense, since an optimizer takes them either dense or in factors.
        mixed = torch.is_autocast_enabled(noise.device.type)
        multiply = F.linear if mixed else outer_linear
        grams: list[list[Tensor]] = [[] for _ in range(self.num_groups)]
        with torch.autocast(noise.device.type, enabled=False):
            for hypernetworks in self._alike():
                inputs = torch.stack([noise[:, one.head.group] for one in hypernetworks])
                moved = moved_features(hypernetworks, inputs)
                for one, features in zip(hypernetworks, moved, strict=True):
                    grams[one.head.group].append(one.output_gram(features, multiply))
            return torch.stack([torch.stack(parts).sum(0) for parts in grams], dim=1)

    def _alike(self) -> list[list[Hypernetwork]]:
        """Hypernetworks whose hidden layers have equal shapes, so that they can be stacked."""
        alike: dict[int, list[Hypernetwork]] = {}
        for one in self._all():
            alike.setdefault(one.head.slices, []).append(one)
        return list(alike.values())

    def _all(self) -> list[Hypernetwork]:
        return cast(list[Hypernetwork], list(self.hypernetworks))


@dataclass(frozen=True)
class HypernetworkGenerator(Generator):
    """Describes which hypernetworks make which weights, and their hidden layers.

    Args:
        hidden: Widths of the hidden layers of each hypernetwork.
        slope: Negative slope of the leaky ReLU.
        initialization: How to initialise the hypernetworks, and so the generated weights.
    """

    hidden: tuple[int, ...] = (64, 256, 512)
    slope: float = 0.1
    initialization: Initialization = field(default_factory=FromNetwork)

    def __post_init__(self):
        checks.widths("hidden", self.hidden)
        checks.number("slope", self.slope)

    @property
    def multiplications_per_weight(self) -> int:
        """One for each feature of the last hidden layer."""
        return self.hidden[-1]

    @abstractmethod
    def heads(self, shapes: Shapes) -> list[Head]:
        """Divides the tensors among hypernetworks."""

    def num_parameters(self, shapes: Shapes, noise_dim: int) -> int:
        """The number of parameters of the generator, without building it."""
        own_bias = self.initialization.bias_per_weight
        return sum(
            num_parameters(head, noise_dim, self.hidden, own_bias) for head in self.heads(shapes)
        )

    def make(self, values: Params, noise: GaussianNoise) -> Hypernetworks:
        """Makes the hypernetworks and initialises them from the network's own weights."""
        shapes: Shapes = {name: value.shape for name, value in values.items()}
        hypernetworks: list[Hypernetwork] = []
        for head in self.heads(shapes):
            own_bias = self.initialization.bias_per_weight
            one = Hypernetwork(head, noise.num_inputs, self.hidden, self.slope, own_bias)
            hypernetworks.append(one)
            if initialization_is_skipped():
                continue
            current = torch.cat(
                [values[name].detach().float().cpu().flatten() for name in head.names]
            )
            self.initialization.apply(one, current, fan_in_scale(head.names, shapes), noise)
        # Initial values are drawn on the CPU in single precision, whatever the final device and
        # dtype, so that a seed always gives the same values.
        return Hypernetworks(shapes, hypernetworks).to(next(iter(values.values())))
