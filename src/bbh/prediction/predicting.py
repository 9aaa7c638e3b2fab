"""predict and evaluate: batched over data and weight draws, within a memory limit."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from bbh.batches import (
    Inputs,
    as_batch,
    as_tensors,
    check_loader,
    count,
    cut,
    divisible,
    first_tensor,
    inputs_of,
    joined_weights,
    length_of,
)
from bbh.likelihoods import P
from bbh.memory import by_rows, keep_freed_memory
from bbh.posterior import Posterior
from bbh.prediction.limits import Limits
from bbh.prediction.work import Wanted, found_here, found_together

if TYPE_CHECKING:
    from lightning_fabric import Fabric

logger = logging.getLogger("bbh")

MEMORY_LIMIT = 2 * 2**30
_PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)


def predict(
    posterior: Posterior[P],
    inputs: Inputs | Iterable[Any],
    num_samples: int = 100,
    *,
    samples: Mapping[str, Tensor] | None = None,
    batch_size: int | None = None,
    memory_limit: int = MEMORY_LIMIT,
    keep_draws: bool = False,
    precision: torch.dtype = torch.float32,
    num_threads: int | None = None,
    fabric: "Fabric | None" = None,
) -> P:
    """The predictive distribution of new inputs: the average over weight draws.

    All examples see the same weight draws. Only dropout layers of the network that ``mc_dropout``
    leaves on draw a new mask for each example. Results are on the device of the inputs, or on the
    CPU for a loader.

    Args:
        posterior: The posterior, in evaluation mode during the call and unchanged after it.
        inputs: A tensor, a tuple or dictionary of tensors, or a loader of batches (its targets
            are ignored). NumPy arrays are taken as tensors, those of float64 in torch's default
            type.
        num_samples: The number S of weight draws. A distribution with fewer different draws (MAP,
            an ensemble) uses each once.
        samples: Draws to use instead of new ones, from ``posterior.sample`` or
            ``refresh_batch_norm``.
        batch_size: Examples per call; None takes as many as the memory limit allows, at most 1000.
        memory_limit: Bytes that draws, activations and kept outputs may take in addition to the
            model and the result. The process grows by no more than half as much again, and by a
            second result if the inputs are a loader without a length. At least one draw and one
            example are always processed at once, even if they take more.
        keep_draws: Keep the probabilities of every single draw (regression always does).
        precision: With ``torch.bfloat16`` or ``torch.float16`` the network computes matrix products
            and convolutions in half precision. This is faster on a GPU, and changes probabilities
            in the second or third digit. Weights are drawn, and probabilities averaged, in single
            precision.
        num_threads: Threads on a CPU. None takes one where the network, the draws and the inputs
            are so few that several threads would only wait for each other, and torch's own number
            for all else.
        fabric: Lightning Fabric of several processes, which all call this function with the same
            inputs. Each predicts a share of the examples (of a loader: of the batches) with the
            first one's draws, and all return the whole. None predicts in this process alone.
    """
    _check_posterior(posterior)
    if precision not in _PRECISIONS:
        raise ValueError(
            f"precision={precision}: choose one of {', '.join(map(str, _PRECISIONS))}."
        )
    inputs = as_tensors(inputs)
    if isinstance(inputs, Tensor | Mapping | PackedSequence) or type(inputs) is tuple:
        # A dictionary may be a whole batch, with targets that are not inputs.
        inputs = inputs_of(inputs) if isinstance(inputs, Mapping) else inputs
        home = _device_of(inputs)
        num_pieces = 1 if fabric is None else fabric.world_size
        pieces = _shares(cast(Inputs, inputs), num_pieces)
    else:
        listed = cast(list[Any], inputs) if type(inputs) is list else []
        if listed and all(isinstance(one, Tensor) for one in listed):
            raise TypeError(
                "a list of tensors may be several inputs or several batches: pass tuple(inputs) "
                "for the first, iter(inputs) for the second."
            )
        check_loader("inputs", inputs)
        home, num_pieces = torch.device("cpu"), length_of(inputs)
        pieces = _inputs_of_all(cast(Iterable[Any], inputs))
    keep_freed_memory()
    keep = keep_draws or posterior.likelihood.keeps_outputs
    limits = Limits(batch_size, memory_limit)
    wanted = Wanted(num_samples, samples, limits, keep, home, num_pieces, precision, num_threads)
    return _predict(posterior, pieces, wanted, fabric)


def evaluate(
    posterior: Posterior[Any],
    loader: Iterable[Any],
    num_samples: int = 100,
    *,
    samples: Mapping[str, Tensor] | None = None,
    memory_limit: int = MEMORY_LIMIT,
    fabric: "Fabric | None" = None,
) -> dict[str, float]:
    """Metrics of the predictions for a loader of ``(inputs, targets)`` batches.

    The likelihood decides which metrics there are. They always include ``error`` (per cent wrong,
    or root mean squared error) and ``nll``. Targets that the likelihood ignores, and those whose
    weight in the batch is 0, are left out; other weights do not matter. With ``fabric`` several
    processes share the batches, as in ``predict``; each reads the whole loader.
    """
    predictive, targets, weights = _predict_all(
        posterior, loader, num_samples, samples, memory_limit, keep_draws=False, fabric=fabric
    )
    return posterior.likelihood.metrics(predictive, targets, weights)


def predict_with_targets(
    posterior: Posterior[P],
    loader: Iterable[Any],
    num_samples: int = 100,
    *,
    samples: Mapping[str, Tensor] | None = None,
    memory_limit: int = MEMORY_LIMIT,
    keep_draws: bool = False,
) -> tuple[P, Tensor]:
    """Predictions for a loader of ``(inputs, targets)`` batches, and their targets, on the CPU.

    This is what `bbh.decisions`, `bbh.plots` and `bbh.metrics` take. The loader is read once, so
    that predictions and targets belong together even if it shuffles. Arguments are those of
    `predict`.
    """
    return _predict_all(posterior, loader, num_samples, samples, memory_limit, keep_draws)[:2]


def _predict_all(
    posterior: Posterior[P],
    loader: Iterable[Any],
    num_samples: int,
    samples: Mapping[str, Tensor] | None,
    memory_limit: int,
    keep_draws: bool,
    fabric: "Fabric | None" = None,
) -> tuple[P, Tensor, Tensor | None]:
    """Predictions for all batches of a loader, their targets, and their weights, if any."""
    _check_posterior(posterior)
    check_loader("loader", loader)
    targets: list[Tensor] = []
    weights: list[Tensor | None] = []

    def pieces() -> Iterator[Inputs]:
        for batch in loader:
            inputs, known, factors = as_batch(batch)
            targets.append(known.cpu())
            weights.append(None if factors is None else factors.cpu())
            yield inputs

    keep = keep_draws or posterior.likelihood.keeps_outputs
    limits, home = Limits(None, memory_limit), torch.device("cpu")
    wanted = Wanted(num_samples, samples, limits, keep, home, length_of(loader))
    predictive = _predict(posterior, pieces(), wanted, fabric)
    return predictive, torch.cat(targets), joined_weights(targets, weights)


def _predict(
    posterior: Posterior[P], pieces: Iterator[Inputs], wanted: Wanted, fabric: "Fabric | None"
) -> P:
    if fabric is None or fabric.world_size == 1:
        found = found_here(posterior, pieces, wanted)
    else:
        found = found_together(posterior, pieces, wanted, fabric)
    if not sum(found.sizes):
        raise ValueError("there is nothing to predict: the inputs are empty.")
    with torch.no_grad():  # a likelihood may have parameters of its own
        predictive = posterior.likelihood.predictive(found.sums, found.num_draws, found.outputs)
    _warn_of_not_finite(predictive.mean)
    return predictive


def _warn_of_not_finite(mean: Tensor) -> None:
    finite = by_rows(lambda some: torch.isfinite(some).flatten(1).all(1), mean)
    if not finite.all():
        logger.warning(
            "%d of %d predictions are not finite: look for NaN in the inputs.",
            int((~finite).sum()),
            len(finite),
        )


def _check_posterior(posterior: object) -> None:
    if not isinstance(posterior, Posterior):
        raise TypeError(
            f"the first argument is a {type(posterior).__name__}, not a posterior: make one with "
            "bbh.methods and train it with bbh.fit."
        )


def _shares(inputs: Inputs, number: int) -> Iterator[Inputs]:
    """The inputs in parts of nearly the same size, for as many processes."""
    if number == 1 or not divisible(inputs):
        yield inputs
        return
    size = max(1, -(-count(inputs) // number))
    for first in range(0, count(inputs), size):
        yield cut(inputs, first, first + size)


def _inputs_of_all(loader: Iterable[Any]) -> Iterator[Inputs]:
    # A generator function, since a generator expression would start the loader at once. The loader
    # may use random numbers, and if it did so before the weights are drawn, a tensor and a loader
    # over the same tensor would be predicted with different draws.
    for batch in loader:
        yield inputs_of(batch)


def _device_of(inputs: Inputs) -> torch.device:
    if isinstance(inputs, PackedSequence):
        return inputs.data.device
    tensor = first_tensor(inputs)
    return torch.device("cpu") if tensor is None else tensor.device
