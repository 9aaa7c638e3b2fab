"""Distributions of one weight with a known KL, on which divergences are measured."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributions as td


@dataclass(frozen=True)
class Target:
    """A distribution of one weight.

    Attributes:
        title: How tables name it.
        distribution: Where a weight's draws come from.
    """

    title: str
    distribution: td.Distribution

    @property
    def kl(self) -> float:
        """The KL to the prior N(0, 1) in nats."""
        q = self.distribution
        # ½ log 2π + ½ E[w²] for the prior's density, whatever q is.
        prior_term = 0.5 * (math.log(2 * math.pi) + float(q.variance + q.mean**2))
        entropy = _entropy(q) if isinstance(q, td.MixtureSameFamily) else q.entropy()
        return prior_term - float(entropy)

    def draws(self, num_samples: int, num_weights: int) -> Tensor:
        """Independent draws [S, D]: the columns are weights that all have this distribution."""
        return self.distribution.sample(torch.Size([num_samples, num_weights]))


def mixture(locs: tuple[float, ...], scale: float) -> td.MixtureSameFamily:
    """Equal shares of normal distributions with the same standard deviation."""
    parts = td.Normal(torch.tensor(locs), torch.full((len(locs),), scale))
    return td.MixtureSameFamily(td.Categorical(torch.ones(len(locs))), parts)


def _entropy(q: td.MixtureSameFamily) -> Tensor:
    """The average of −E[log q] over equal parts, each by a sum over a grid of its own."""
    parts = q.component_distribution
    steps = torch.linspace(-10.0, 10.0, 4001)
    density = torch.exp(-0.5 * steps**2)
    log_q = q.log_prob(parts.mean + parts.stddev * steps[:, None])
    return -(density @ log_q).mean() / density.sum()


TARGETS = {
    "prior": Target("N(0, 1)", td.Normal(0.0, 1.0)),
    "narrow": Target("N(0, 0.1²)", td.Normal(0.0, 0.1)),
    "far": Target("N(3, 0.1²)", td.Normal(3.0, 0.1)),
    "wide": Target("N(0, 5²)", td.Normal(0.0, 5.0)),
    "uniform": Target("U(±0.5)", td.Uniform(-0.5, 0.5)),
    "laplace": Target("Laplace(0.3)", td.Laplace(0.0, 0.3)),
    "two_modes": Target("½N(±0.5, 0.1²)", mixture((-0.5, 0.5), 0.1)),
    "two_wide_modes": Target("½N(±1, 0.3²)", mixture((-1.0, 1.0), 0.3)),
    "two_sharp_modes": Target("½N(±1, 0.01²)", mixture((-1.0, 1.0), 0.01)),
    "three_modes": Target("⅓N(−1; 0; 1, 0.1²)", mixture((-1.0, 0.0, 1.0), 0.1)),
}
