"""predict and evaluate: batched over data and weight draws, within a memory limit."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

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
    first_tensor,
    inputs_of,
    length_of,
    move,
)
from bbh.likelihoods import P
from bbh.memory import by_rows
from bbh.posterior import Posterior
from bbh.prediction.draws import Draws, evaluation_mode
from bbh.prediction.limits import Limits, Tiles, outputs_of
from bbh.prediction.results import Results

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
        home, pieces = _device_of(inputs), iter([cast(Inputs, inputs)])
        num_pieces = 1
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
    limits = Limits(batch_size, memory_limit)
    return _predict(
        posterior, pieces, num_samples, samples, limits, keep_draws, home, num_pieces, precision
    )


def evaluate(
    posterior: Posterior[Any],
    loader: Iterable[Any],
    num_samples: int = 100,
    *,
    samples: Mapping[str, Tensor] | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> dict[str, float]:
    """Metrics of the predictions for a loader of ``(inputs, targets)`` batches.

    The likelihood decides which metrics there are. They always include ``error`` (per cent wrong,
    or root mean squared error) and ``nll``.
    """
    _check_posterior(posterior)
    check_loader("loader", loader)
    targets: list[Tensor] = []

    def pieces() -> Iterator[Inputs]:
        for batch in loader:
            inputs, known, _ = as_batch(batch)
            targets.append(known.cpu())
            yield inputs

    limits = Limits(None, memory_limit)
    home, num_pieces = torch.device("cpu"), length_of(loader)
    predictive = _predict(
        posterior, pieces(), num_samples, samples, limits, False, home, num_pieces
    )
    return posterior.likelihood.metrics(predictive, torch.cat(targets))


def _check_posterior(posterior: object) -> None:
    if not isinstance(posterior, Posterior):
        raise TypeError(
            f"the first argument is a {type(posterior).__name__}, not a posterior: make one with "
            "bbh.methods and train it with bbh.fit."
        )


def _inputs_of_all(loader: Iterable[Any]) -> Iterator[Inputs]:
    # A generator function, since a generator expression would start the loader at once. The loader
    # may use random numbers, and if it did so before the weights are drawn, a tensor and a loader
    # over the same tensor would be predicted with different draws.
    for batch in loader:
        yield inputs_of(batch)


def _predict(
    posterior: Posterior[P],
    pieces: Iterator[Inputs],
    num_samples: int,
    samples: Mapping[str, Tensor] | None,
    limits: Limits,
    keep_draws: bool,
    home: torch.device,
    num_pieces: int | None,
    precision: torch.dtype = torch.float32,
) -> P:
    likelihood = posterior.likelihood
    half = None if precision == torch.float32 else precision
    with evaluation_mode(posterior), torch.no_grad():
        draws = Draws(posterior, num_samples, samples, limits.draws)
        keep = keep_draws or likelihood.keeps_outputs
        tiles = results = None
        for piece in pieces:
            if not count(piece):
                continue
            if tiles is None or results is None:
                tiles = Tiles(posterior, piece, draws, limits, half)
                check = limits.check_kept if keep else None
                # A loader's batches are as large as the first, but for the last.
                room = count(piece) * (num_pieces or 1)
                results = Results(draws.total, count(piece), room, home, check)
            examples, at_once = tiles.of(piece)
            for first in range(0, count(piece), examples):
                batch = move(cut(piece, first, first + examples), posterior.device)
                for some in draws.at_most(at_once):
                    outputs = outputs_of(posterior, batch, some, half)
                    results.add(outputs, likelihood.sums(outputs))
                results.end_batch()
    if results is None:
        raise ValueError("there is nothing to predict: the inputs are empty.")
    with torch.no_grad():  # a likelihood may have parameters of its own
        predictive = likelihood.predictive(results.sums(), draws.total, results.outputs())
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


def _device_of(inputs: Inputs) -> torch.device:
    if isinstance(inputs, PackedSequence):
        return inputs.data.device
    tensor = first_tensor(inputs)
    return torch.device("cpu") if tensor is None else tensor.device
