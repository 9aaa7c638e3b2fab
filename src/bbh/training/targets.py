"""Before training: learns what a likelihood wants to know about targets, or warns about them."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor

from bbh.batches import as_batch
from bbh.likelihoods import Likelihood, Regression
from bbh.likelihoods.location_scale import CommonScale
from bbh.training.random_numbers import Order, random_state_kept

logger = logging.getLogger("bbh")
# Outputs are about 1 at first. Targets that are ten times as far from zero as such outputs with
# their noise will hardly be reached at usual learning rates, and noise of ten times the targets'
# spread hides them. Both are nearly always a matter of units.
_FAR = 10.0


def prepare_targets(
    likelihood: Likelihood[Any],
    loader: Iterable[Any],
    order: Order,
    broadcast: Callable[[Any], Any],
) -> None:
    """Learns from the training targets what the likelihood waits for.

    That is loc and scale of regression targets, the base rate of counts, or the frequencies of
    ordered levels.

    This takes one pass over the loader, after which all random generators are where they were, so
    that seeds give the batches and draws that they would give without it. Other regression
    likelihoods see only the loader's first batch, for a warning if its targets are far from what
    the likelihood expects. Other kinds of likelihood need nothing.

    Args:
        likelihood: The likelihood, changed in place.
        loader: The training loader.
        order: What decides the order of its batches.
        broadcast: Gives all processes an object of the first one, so that they agree.
    """
    if not isinstance(likelihood, Regression) and not likelihood.waits_for_targets:
        return
    if isinstance(loader, Iterator):
        if likelihood.waits_for_targets:
            logger.warning(
                "the training data can be read only once, so %s does not learn before training "
                "where the targets lie: call posterior.likelihood.fit_targets(targets) before fit, "
                "or give the likelihood what it would learn (standardise= or base_rate=).",
                type(likelihood).__name__,
            )
        return
    with random_state_kept(order):
        if likelihood.waits_for_targets:
            known = likelihood.summary_of(_targets(loader))
            # Each process has seen its own share of the data.
            likelihood.set_targets(broadcast(known))
        elif isinstance(likelihood, Regression) and (first := next(iter(_targets(loader)), None)):
            _warn_if_far(likelihood, *first)


def _targets(loader: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor | None]]:
    for raw in loader:
        batch = as_batch(raw)
        yield batch.targets, batch.weights


def _warn_if_far(
    likelihood: Regression[Any], targets: Tensor, weights: Tensor | None = None
) -> None:
    values = likelihood.standardised(targets.detach()).double()
    if (observed := likelihood.observed(targets, weights)) is not None:
        values = values[observed]
    if values.numel() < 2:
        return
    noise = likelihood.initial_noise
    size, spread = float(values.square().mean().sqrt()), float(values.std())
    name = type(likelihood).__name__
    remedy = (
        f"{name}() without a noise scale learns location, scale and noise from the data"
        if isinstance(likelihood, CommonScale)
        else f"{name}(standardise=True) learns their location and scale"
    )
    if size > _FAR * (1 + noise**2) ** 0.5:
        logger.warning(
            "the training targets are %.3g on average, far from the network's first outputs, which "
            "are about 1, and from the noise, which is %.3g: %s.",
            size,
            noise,
            remedy,
        )
    elif 0 < spread < noise / _FAR:
        logger.warning(
            "the training targets have a standard deviation of %.3g, far less than the noise that "
            "the likelihood assumes, %.3g, so it will learn little from them: %s.",
            spread,
            noise,
            remedy,
        )
