"""Distributions over disjoint parts of one network, side by side."""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import nn

from bbh.cost import Cost
from bbh.distribution import WeightDistribution
from bbh.priors import Prior
from bbh.samples import Params


class Product(WeightDistribution):
    """q(w) = Π_i q_i(w_i), say generated kernels and point-estimated normalisation layers."""

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
        self.auxiliary_steps = max(part.auxiliary_steps for part in parts)
        self.pretraining_steps = max(part.pretraining_steps for part in parts)
        distinct = [part.num_distinct for part in parts]
        self.num_distinct = (
            None if None in distinct else max(number for number in distinct if number is not None)
        )

    def sample(self, num_samples: int) -> Params:
        """One draw of every part."""
        return _Joint([part.sample(num_samples) for part in self._parts()])

    def cost(self, samples: Params, prior: Prior) -> Cost:
        """The parts' costs, added up."""
        parts = list(self._parts())
        own = samples.apart() if isinstance(samples, _Joint) else [samples] * len(parts)
        costs = [part.cost(draws, prior) for part, draws in zip(parts, own, strict=True)]
        complexity = torch.stack([cost.complexity for cost in costs]).sum()
        return Cost(complexity, sum((cost.auxiliary for cost in costs), start=0.0))

    def check_prior(self, prior: Prior) -> None:
        """Every part checks for itself."""
        for part in self._parts():
            part.check_prior(prior)

    def _parts(self) -> Iterable[WeightDistribution]:
        return cast(Iterable[WeightDistribution], self.parts)


class _Joint(Params):
    """Draws of all parts, and each part's as it made them: some bring along what they know."""

    def __init__(self, parts: list[Params]):
        super().__init__()
        for part in parts:
            self |= part
        self._parts = parts

    def apart(self) -> list[Params]:
        """Each part's own, unless other tensors have taken the place of some of them."""
        return [
            part if all(self.get(name) is value for name, value in part.items()) else self
            for part in self._parts
        ]
