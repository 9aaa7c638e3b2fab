"""A few explicit weight settings: one is MAP, several are a deep ensemble."""

from collections.abc import Collection, Sequence

import torch

from bbh.distribution import Cost, WeightDistribution
from bbh.priors import Prior
from bbh.samples import Params, Samples, Shapes, TensorTable


class Particles(WeightDistribution):
    """K weight settings with equal mass: q(w) = 1/K Σ_k δ(w − w_k).

    The KL from a sum of point masses to a prior with a density is infinite. The cost is therefore
    the mean of −log p(w_k), so that training finds a maximum a posteriori for every member.

    Args:
        members: Initial values of the K weight settings, ``{name: [K, *shape]}``.
        buffers: The network's buffers for each member, ``{name: [K, *shape]}``: members of an
            ensemble have separate batch-norm statistics.
        penalised: Names of the tensors whose prior density enters the cost; None for all. The
            others are point estimates without a prior.
        random_network: Whether the network itself is random (its dropout layers stay on), so that
            every pass with the same weights is another draw.
    """

    def __init__(
        self,
        members: Params,
        buffers: Params | None = None,
        *,
        penalised: Collection[str] | None = None,
        random_network: bool = False,
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
        self.samples_per_step = len(next(iter(members.values())))
        self.num_members = self.samples_per_step
        self.num_distinct = None if random_network else self.samples_per_step
        self.statistics_differ = self.samples_per_step > 1 and not buffers

    def sample(self, num_samples: int) -> Samples:
        """Members in random order, none repeated before all are used.

        If exactly K draws are asked for, they are the members in order, without a copy.
        """
        stacked = self.members() | self.buffers_of_members()
        num_members = self.samples_per_step
        if num_samples == num_members:
            return Samples(stacked)
        if num_members == 1:
            return Samples({n: v.expand(num_samples, *v.shape[1:]) for n, v in stacked.items()})
        device = next(iter(stacked.values())).device
        rounds = -(-num_samples // num_members)
        order = torch.cat([torch.randperm(num_members) for _ in range(rounds)])[:num_samples]
        return Samples({name: value[order.to(device)] for name, value in stacked.items()})

    def cost(self, samples: Samples, prior: Prior) -> Cost:
        """Mean of −log p over the drawn members."""
        if not self.penalised:
            return Cost(next(iter(samples.values())).new_zeros(()))
        return Cost(-prior.log_density(samples, self.penalised).mean())

    def check_prior(self, prior: Prior) -> None:
        """Raises if the prior does not fit; without penalised tensors every prior does."""
        if self.penalised:
            super().check_prior(prior)

    def some_members(self, members: Sequence[int]) -> "Particles":
        """Copies of these weight settings and of their buffers."""
        tables = [self.members(), self.buffers_of_members()]
        values, buffers = ({n: v[list(members)].detach() for n, v in one.items()} for one in tables)
        part = Particles(values, buffers, penalised=self.penalised)
        part.num_distinct = None if self.num_distinct is None else part.num_distinct
        return part

    @torch.no_grad()
    def put_members(self, members: Sequence[int], part: WeightDistribution) -> None:
        """Copies the weight settings and buffers of the part to their places."""
        assert isinstance(part, Particles)
        tables = (self.members, part.members), (self.buffers_of_members, part.buffers_of_members)
        for own, trained in tables:
            for name in own:
                own[name][list(members)] = trained[name]

    def random_shapes(self) -> Shapes:
        """All tensors if there are several members; a single member is a point estimate."""
        return self.shapes if self.samples_per_step > 1 else {}
