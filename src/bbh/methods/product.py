"""The product of several distributions over disjoint parts of one network."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from bbh.distribution import Cost, WeightDistribution
from bbh.priors import Prior
from bbh.samples import Samples, Shapes


class Product(WeightDistribution):
    """q(w) = Π_i q_i(w_i).

    For example, kernels from a generator and point estimates of the normalisation layers.

    Args:
        parts: Distributions q_i that cover different tensors.
    """

    def __init__(self, parts: Sequence[WeightDistribution]):
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.shapes = {}
        for part in parts:
            twice = self.shapes.keys() & part.shapes.keys()
            if twice:
                raise ValueError(f"two parts of a Product cover the same tensors: {sorted(twice)}.")
            self.shapes |= part.shapes
        self.samples_per_step = max(part.samples_per_step for part in parts)
        # A product's first part is the distribution; the others are point estimates beside it.
        self.likelihood_samples = parts[0].likelihood_samples
        self.training_defaults = parts[0].training_defaults
        self.auxiliary_steps = max(part.auxiliary_steps for part in parts)
        self.pretraining_steps = max(part.pretraining_steps for part in parts)
        self.statistics_differ = any(part.statistics_differ for part in parts)
        distinct = [part.num_distinct for part in parts]
        self.num_distinct = (
            None if None in distinct else max(number for number in distinct if number is not None)
        )

    def sample(self, num_samples: int) -> Samples:
        """Draws from every part and joins the draws."""
        return Samples.joined([part.sample(num_samples) for part in self._parts()])

    def cost(self, samples: Samples, prior: Prior) -> Cost:
        """The sum of the costs of all parts."""
        pairs = zip(self._parts(), samples.parts or [samples] * len(self.parts), strict=True)
        costs = [part.cost(draws, prior) for part, draws in pairs]
        complexity = torch.stack([cost.complexity for cost in costs]).sum()
        return Cost(complexity, sum((cost.auxiliary for cost in costs), start=0.0))

    def draws_per_step(self, likelihood_samples: int | None = None) -> int:
        """As many as the part takes that needs the most."""
        return max(part.draws_per_step(likelihood_samples) for part in self._parts())

    def check_prior(self, prior: Prior) -> None:
        """Raises if the prior does not fit one of the parts."""
        for part in self._parts():
            part.check_prior(prior)

    def end_epoch(self) -> None:
        """Passes the end of an epoch on to every part."""
        for part in self._parts():
            part.end_epoch()

    def random_shapes(self) -> Shapes:
        """The random parameters of all parts."""
        return {
            name: shape for part in self._parts() for name, shape in part.random_shapes().items()
        }

    def own_temperature(self, num_data: float) -> float:
        """That of the first part; the others are point estimates beside it."""
        return self._parts()[0].own_temperature(num_data)

    def noise_groups(self) -> dict[tuple[str, ...], int]:
        """The noise groups of all parts."""
        return {names: dim for part in self._parts() for names, dim in part.noise_groups().items()}

    def factored_parameters(self) -> list[nn.Parameter]:
        """The factored parameters of all parts."""
        return [one for part in self._parts() for one in part.factored_parameters()]

    def _parts(self) -> list[WeightDistribution]:
        return cast(list[WeightDistribution], list(self.parts))
