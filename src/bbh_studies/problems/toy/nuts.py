"""The exact posterior of a small network by the No-U-Turn sampler, to judge methods by.

    U(w) = −Σ_n log p(y_n | x_n, w) − log p(w)

is the potential that NUTS, Hoffman & Gelman (2014), samples from, in Pyro. The weights of a network
are not identified, since hidden units permute and their signs and scales trade off. *Functions* are
identified, so convergence is judged on predictions.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bbh.likelihoods import Likelihood
from bbh.methods import maximum_a_posteriori
from bbh.priors import Prior
from bbh.samples import Params, flatten, unflatten

_EXTRA = "sampling the reference posterior needs Pyro: pip install 'bayes-by-hypernet[reference]'."


@dataclass(frozen=True)
class NutsSettings:
    """How long and how finely to sample.

    Attributes:
        chains: Number of independent chains, each started from a draw of the prior.
        warmup: Steps that adapt step size and mass matrix; they are thrown away.
        draws: Draws kept per chain, after thinning.
        thin: Steps per kept draw.
        max_tree_depth: A step takes at most 2^depth gradients.
        acceptance: Acceptance probability to which the step size is adapted.
        seed: Seed of starting points and momenta.
    """

    chains: int = 4
    warmup: int = 500
    draws: int = 500
    thin: int = 1
    max_tree_depth: int = 10
    acceptance: float = 0.8
    seed: int = 0


DEFAULT_SETTINGS = NutsSettings()


@dataclass(frozen=True)
class NutsDraws:
    """Weights from the posterior, and how sampling went.

    Attributes:
        samples: ``{name: [chains · draws, *shape]}``, chain after chain: ordinary weight samples.
        chains: How many chains these are.
        divergences: Steps of all chains whose energy error was too large.
        seconds: Processor time, which other programs do not prolong.
    """

    samples: Params
    chains: int
    divergences: int
    seconds: float


def nuts(
    network: nn.Module,
    likelihood: Likelihood[Any],
    prior: Prior,
    inputs: Tensor,
    targets: Tensor,
    settings: NutsSettings = DEFAULT_SETTINGS,
) -> NutsDraws:
    """Draws a network's trainable parameters from their posterior, in double precision.

    Args:
        network: Read, never changed; its own values do not matter.
        likelihood: It is not trained: parameters of its own keep their values.
        prior: A prior with a density.
        inputs: All training inputs.
        targets: All training targets.
        settings: How long to sample.
    """
    try:
        from pyro.infer import MCMC, NUTS
    except ImportError as error:
        raise ImportError(_EXTRA) from error
    started = time.process_time()
    # The posterior object evaluates the network with given weights; its estimate is not used.
    posterior = maximum_a_posteriori(network, likelihood, prior).double()
    shapes = posterior.weights.shapes
    inputs, targets = inputs.double(), targets.double()

    def potential(sites: dict[str, Tensor]) -> Tensor:
        samples = unflatten(sites["weights"].unsqueeze(0), shapes)
        log_likelihood = posterior.likelihood.log_prob(posterior(inputs, samples), targets).sum()
        return -log_likelihood - prior.log_density(samples, shapes).sum()

    chains: list[Tensor] = []
    divergences = 0
    with torch.random.fork_rng(devices=[]):
        for chain in range(settings.chains):
            torch.default_generator.manual_seed(settings.seed * 1000 + chain)
            kernel = NUTS(
                potential_fn=potential,
                max_tree_depth=settings.max_tree_depth,
                target_accept_prob=settings.acceptance,
            )
            start = flatten(prior.sample_like(posterior.sample(1), shapes, 1), shapes)[0]
            run = MCMC(
                kernel,
                num_samples=settings.draws * settings.thin,
                warmup_steps=settings.warmup,
                initial_params={"weights": start},
                disable_progbar=True,
            )
            run.run()
            chains.append(run.get_samples()["weights"][settings.thin - 1 :: settings.thin])
            divergences += len(run.diagnostics()["divergences"]["chain 0"])
    samples = unflatten(torch.cat(chains), shapes)
    return NutsDraws(samples, settings.chains, divergences, time.process_time() - started)


@dataclass(frozen=True)
class Convergence:
    """How well chains agree on a function's values, at the point where they agree least.

    Attributes:
        r_hat: Largest split R-hat, Gelman et al. (2013): 1 where chains agree.
        effective_samples: Smallest effective sample size: the number of independent draws that
            would say as much.
    """

    r_hat: float
    effective_samples: float


def convergence(values: Float[Tensor, "chains draws points"]) -> Convergence:
    """R-hat and effective sample size of every point, and the worst of each."""
    try:
        from pyro.ops.stats import effective_sample_size, split_gelman_rubin
    except ImportError as error:
        raise ImportError(_EXTRA) from error
    r_hat = split_gelman_rubin(values, chain_dim=0, sample_dim=1)
    size = effective_sample_size(values, chain_dim=0, sample_dim=1)
    return Convergence(float(r_hat.max()), float(size.min()))
