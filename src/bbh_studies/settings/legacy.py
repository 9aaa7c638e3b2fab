"""What the authors' code does and their paper does not say, for the ``legacy`` presets.

Some differences from their code remain. Members of an ensemble share their batches here, while in
their code each member draws its own. A flow's multipliers are drawn once per weight draw here, not
once per example. On CIFAR5, perturbations here are in pixels, theirs in each image's own standard
deviations; and the batches whose statistics enter a prediction are as large as memory allows here,
while theirs have 1,000 images.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

import bbh
from bbh.distribution import Cost
from bbh.divergences import Comparison, Divergence
from bbh.likelihoods import Likelihood
from bbh.methods import MultiplicativeFlow, Particles, Product
from bbh.network import select_bayesian, trainable_parameters
from bbh.priors import Prior
from bbh.samples import Params

# The smallest distance between two draws, and what keeps quotients and logarithms finite.
_FLOOR = 1e-4
_TINY = 1e-8


def falling_beta(step: float) -> float:
    """Weight of the KL in the toy notebook: on for four steps, and then off for good.

    >>> [falling_beta(step) for step in range(5)]
    [1.0, 1.0, 1.0, 0.5, 0.0]
    """
    return min(1.0, max(0.0, 10 / (step + 1) - 2))


@dataclass(frozen=True)
class FlattenedNearestNeighbour(Divergence):
    """The estimator of the published toy figure, which lacks the repulsion between draws.

    The authors' notebook lays the n draws of D weights one behind the other and treats them as n·D
    weights with one draw each. A draw then has no other to keep a distance from, and its distance
    to the nearest is always the floor, 10⁻⁴:

        KL ≈ Σ_i Σ_w [log(√((p_iw − g_iw)² + 10⁻⁸) / (10⁻⁴ + 10⁻⁸) + 10⁻⁸) + log(n / (n − 1))],

    where p_iw is a new draw of the prior for every value g_iw. So every value is pulled to a random
    point of the prior, and nothing widens the posterior. The sum over draws, in place of a mean, is
    the notebook's too. A year later the authors compared draws of the same weight, as
    ``bbh.divergences.NearestNeighbour`` does.
    """

    def min_samples(self) -> int:
        """Two, for the logarithm of n / (n − 1)."""
        return 2

    def estimate(self, comparison: Comparison) -> Cost:
        """Draws from the prior and compares."""
        generated = comparison.flat()
        num_samples = len(generated)
        across = (comparison.prior_flat(num_samples) - generated).square()
        ratio = (across + _FLOOR**2).sqrt() / (_FLOOR + _TINY) + _TINY
        constant = generated.numel() * math.log(num_samples / (num_samples - 1))
        return Cost(ratio.log().sum() + constant)


def kernel_names(network: nn.Module) -> list[str]:
    """Names of matrices and convolution kernels: the authors' weight decay acts on these."""
    return [name for name, value in network.named_parameters() if value.dim() > 1]


def dense_names(network: nn.Module) -> list[str]:
    """Names of dense layers' weights and biases: only their KL enters the authors' objective.

    Their code stores the KL of the convolutions in a place that their trainer does not read.
    """
    return [
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in network.named_modules()
        if isinstance(module, nn.Linear)
        for name, _ in module.named_parameters()
    ]


def dropout_names(network: nn.Module) -> tuple[str, ...]:
    """Names of the network's dropout layers."""
    return tuple(name for name, module in network.named_modules() if isinstance(module, nn.Dropout))


def point_estimate(
    network: nn.Module,
    likelihood: Likelihood[Any],
    prior: Prior,
    *,
    penalised: Sequence[str],
) -> bbh.Posterior[Any]:
    """A point estimate with a prior on some of its weights; dropout layers stay switched on."""
    dropout = dropout_names(network)
    weights = Particles(
        {name: value.unsqueeze(0) for name, value in _values(network).items()},
        penalised=penalised,
        random_network=bool(dropout),
    )
    return bbh.Posterior(network, weights, prior, likelihood, always_on=dropout)


def flows(
    network: nn.Module,
    likelihood: Likelihood[Any],
    prior: Prior,
    *,
    initial_scale: float,
    max_scale: float,
    penalised: Sequence[str],
) -> bbh.Posterior[Any]:
    """Multiplicative normalising flows for which only the ``penalised`` weights have a KL."""
    values, bayesian = _values(network), select_bayesian(network, None)
    weights = MultiplicativeFlow(
        {name: values.pop(name) for name in bayesian},
        initial_scale,
        max_scale,
        penalised=penalised,
    )
    if not values:
        return bbh.Posterior(network, weights, prior, likelihood)
    # What is left are the parameters of normalisation layers.
    points = Particles({name: v.unsqueeze(0) for name, v in values.items()}, penalised=())
    return bbh.Posterior(network, Product([weights, points]), prior, likelihood)


def _values(network: nn.Module) -> Params:
    return {name: value.detach().clone() for name, value in trainable_parameters(network).items()}
