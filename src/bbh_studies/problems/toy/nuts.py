"""The No-U-Turn sampler, Hoffman & Gelman (2014), by Pyro, and whether its chains agree."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

_EXTRA = "sampling the reference posterior needs Pyro: pip install 'bayes-by-hypernet[reference]'."


@dataclass(frozen=True)
class NutsSettings:
    """How long and how finely to sample.

    Attributes:
        chains: Number of independent chains.
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
    """Draws from a density, and how sampling went.

    Attributes:
        values: The draws of every chain.
        divergences: Steps of all chains whose energy error was too large.
        seconds: Processor time, which other programs do not prolong.
    """

    values: Float[Tensor, "chains draws dimensions"]
    divergences: int
    seconds: float


def nuts(
    potential: Callable[[Float[Tensor, " dimensions"]], Tensor],
    make_start: Callable[[], Float[Tensor, " dimensions"]],
    settings: NutsSettings = DEFAULT_SETTINGS,
) -> NutsDraws:
    """Draws from the density exp(−U).

    Args:
        potential: U, up to a constant.
        make_start: Draws the point at which a chain starts.
        settings: How long to sample.
    """
    try:
        from pyro.infer import MCMC, NUTS
    except ImportError as error:
        raise ImportError(_EXTRA) from error

    def of_sites(sites: dict[str, Tensor]) -> Tensor:
        return potential(sites["values"])

    started = time.process_time()
    chains: list[Tensor] = []
    divergences = 0
    with torch.random.fork_rng(devices=[]):
        for chain in range(settings.chains):
            torch.default_generator.manual_seed(settings.seed * 1000 + chain)
            kernel = NUTS(
                potential_fn=of_sites,
                max_tree_depth=settings.max_tree_depth,
                target_accept_prob=settings.acceptance,
            )
            run = MCMC(
                kernel,
                num_samples=settings.draws * settings.thin,
                warmup_steps=settings.warmup,
                initial_params={"values": make_start()},
                disable_progbar=True,
            )
            run.run()
            chains.append(run.get_samples()["values"][settings.thin - 1 :: settings.thin])
            divergences += len(run.diagnostics()["divergences"]["chain 0"])
    return NutsDraws(torch.stack(chains), divergences, time.process_time() - started)


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
