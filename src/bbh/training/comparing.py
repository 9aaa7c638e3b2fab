"""Compares a trained posterior with a constant prediction and the network it started from."""

import logging
import math
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from bbh.batches import Batch, length_of
from bbh.posterior import Posterior
from bbh.prediction import evaluate
from bbh.prediction.draws import evaluation_mode, seeded
from bbh.samples import Params, Samples, size
from bbh.training.comparison import Comparison
from bbh.training.passing import Passing

logger = logging.getLogger("bbh")

_EXAMPLES = 1_000
_TARGETS = 10_000
_DRAWS = 20
_DRAWS_BYTES = 2**28
# The number of groups of examples. How much a difference varies between groups gives its standard
# error.
_GROUPS = 10


class Comparing:
    """Keeps examples while ``fit`` trains and validates, and judges the posterior at the end.

    Random numbers are those of a copy of the generators, so training is the same with it and
    without.

    Args:
        posterior: The posterior in training.
        validated: Whether there are validation data. If so it is compared on these, else on
            training data.
        enabled: If False, nothing is kept and there is no result.
    """

    def __init__(self, posterior: Posterior[Any], *, validated: bool, enabled: bool):
        self._posterior = posterior
        self._validated = validated
        self._enabled = enabled
        self._examples = Passing(_EXAMPLES, spread=64)
        self._targets = Passing(_TARGETS, spread=1_000, with_inputs=False)

    def training(self, loader: Iterable[Any]) -> Iterable[Any]:
        """The training batches as they are, while some of their targets are kept.

        If there are no validation data, whole examples are kept too.
        """
        if not self._enabled:
            return loader
        length = length_of(loader)
        passing = self._targets.through(loader, length)
        return passing if self._validated else self._examples.through(passing, length)

    def validation(self, loader: Iterable[Any]) -> Iterable[Any]:
        """The validation batches as they are, while some of their examples are kept."""
        return self._examples.through(loader, length_of(loader)) if self._enabled else loader

    def result(self) -> Comparison | None:
        """How the posterior compares; logs a warning if it lost."""
        if not self._enabled or not self._examples.batches:
            return None
        posterior = self._posterior
        try:
            with seeded(0, posterior.device), evaluation_mode(posterior), torch.no_grad():
                comparison = self._compare()
        except Exception as error:
            # The network is trained, and a likelihood or batches of an unusual kind that cannot be
            # compared must not spoil that.
            logger.info("the posterior was compared with nothing: %s", error)
            return None
        if warning := comparison.warning():
            logger.warning(warning)
        return comparison

    def _compare(self) -> Comparison:
        posterior = self._posterior
        groups = [group for group in self._examples.in_groups(_GROUPS) if self._judgeable(group)]
        samples = posterior.sample(self._num_draws()).values_only()
        own = _Scores(posterior, groups, samples)
        examples = [batch for group in groups for batch in group]
        constant = self._constant(examples)
        start = None
        if posterior.start is not None:
            with _nothing_on(posterior):
                start = _Scores(posterior, groups, _as_draw(posterior.start, samples))
        return Comparison(
            data="validation" if self._validated else "training",
            num_examples=sum(len(batch.targets) for batch in examples),
            posterior=own.whole,
            constant=constant,
            start=start and start.whole,
            lost_to_constant=constant is not None and not own.whole["nll"] < constant["nll"],
            lost_to_start=start is not None and self._lost(own, start),
        )

    def _judgeable(self, group: list[Batch]) -> bool:
        """Whether any target of a group of batches is known."""
        observed = [self._posterior.likelihood.observed(one.targets, one.weights) for one in group]
        return any(one is None or bool(one.any()) for one in observed)

    def _constant(self, examples: list[Batch]) -> dict[str, float] | None:
        """Metrics of the constant prediction; None if single targets have weights."""
        training = self._targets.batches
        if any(one.weights is not None and one.weights.dim() > 1 for one in training + examples):
            return None
        known = torch.cat([_counted(one) for one in training])
        judged = torch.cat([_counted(one) for one in examples])
        return self._posterior.likelihood.constant(known, judged)

    def _lost(self, own: "_Scores", start: "_Scores") -> bool:
        """Whether the posterior clearly lost to the network it started from.

        A trained network may owe its training NLL to overfitting, so on training data the error
        must be worse as well.
        """
        worse = [own.worse_than(start, metric) for metric in ("nll", "error")]
        return any(worse) if self._validated else all(worse)

    def _num_draws(self) -> int:
        weights = self._posterior.weights
        affordable = _DRAWS_BYTES // (4 * size(weights.shapes))
        return weights.num_useful(max(1, min(_DRAWS, affordable)))


class _Scores:
    """Metrics of some draws on all examples, and on every group of them."""

    def __init__(self, posterior: Posterior[Any], groups: list[list[Batch]], samples: Samples):
        everything = [batch for group in groups for batch in group]
        self.whole = evaluate(posterior, everything, samples=samples)
        self.parts = [evaluate(posterior, group, samples=samples) for group in groups]

    def worse_than(self, other: "_Scores", metric: str) -> bool:
        """Whether a metric is larger by more than three standard errors over the groups."""
        if len(self.parts) < 2:
            return False
        more = [a[metric] - b[metric] for a, b in zip(self.parts, other.parts, strict=True)]
        return mean(more) > 3 * stdev(more) / math.sqrt(len(more))


def _counted(batch: Batch) -> Tensor:
    """The targets of the examples whose weight is not 0."""
    return (batch.targets if batch.weights is None else batch.targets[batch.weights != 0]).cpu()


def _as_draw(values: Params, like: Samples) -> Samples:
    """One draw of these values, with the type and on the device of other draws."""
    device = next(iter(like.values())).device
    return Samples({name: value[None].to(like.get(name, device)) for name, value in values.items()})


@contextmanager
def _nothing_on(posterior: Posterior[Any]) -> Generator[None]:
    """Within this context no module stays in training mode for predictions (MC dropout)."""
    always_on, posterior.always_on = posterior.always_on, ()
    try:
        yield
    finally:
        posterior.always_on = always_on
        posterior.train(posterior.training)
