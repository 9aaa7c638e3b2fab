"""A few explicit weight settings: one is MAP, several are a deep ensemble."""

from collections.abc import Collection

import torch

from bbh.cost import Cost
from bbh.distribution import WeightDistribution
from bbh.priors import Prior
from bbh.samples import Params, TensorTable


class Particles(WeightDistribution):
    """K weight settings with equal mass: q(w) = 1/K Σ_k δ(w − w_k).

    A sum of point masses has no KL to a prior with a density; what it pays is the mean of
    −log p(w_k), so that training it is maximum a posteriori for every member.

    Args:
        members: ``{name: [K, *shape]}``.
        buffers: The network's buffers for each member, ``{name: [K, *shape]}``: members of an
            ensemble keep batch-norm statistics of their own.
        penalised: Names of the tensors that know the prior; None for all. The others are plain
            point estimates.
    """

    def __init__(
        self,
        members: Params,
        buffers: Params | None = None,
        *,
        penalised: Collection[str] | None = None,
    ):
        super().__init__()
        self.members = TensorTable(members, trainable=True)
        self.buffers_of_members = TensorTable(buffers or {}, trainable=False)
        self.shapes = {name: value.shape[1:] for name, value in members.items()}
        self.penalised = {
            name: shape
            for name, shape in self.shapes.items()
            if penalised is None or name in penalised
        }
        self.num_distinct = self.samples_per_step = len(next(iter(members.values())))

    def sample(self, num_samples: int) -> Params:
        """Members in random order, none repeated before all are used.

        Exactly K draws are the members themselves, in order and without a copy.
        """
        stacked = self.members() | self.buffers_of_members()
        num_members = self.samples_per_step
        if num_samples == num_members:
            return stacked
        if num_members == 1:
            return {
                name: value.expand(num_samples, *value.shape[1:]) for name, value in stacked.items()
            }
        device = next(iter(stacked.values())).device
        rounds = -(-num_samples // num_members)
        order = torch.cat([torch.randperm(num_members) for _ in range(rounds)])[:num_samples]
        return {name: value[order.to(device)] for name, value in stacked.items()}

    def cost(self, samples: Params, prior: Prior) -> Cost:
        """Mean of −log p over the drawn members."""
        if not self.penalised:
            return Cost(next(iter(samples.values())).new_zeros(()))
        return Cost(-prior.log_density(samples, self.penalised).mean())

    def check_prior(self, prior: Prior) -> None:
        """Point estimates take any prior, since they do not look at it."""
        if self.penalised:
            super().check_prior(prior)
