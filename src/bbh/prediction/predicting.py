"""predict and evaluate: batched over data and weight draws, within a memory limit."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from bbh import checks
from bbh.batches import (
    Inputs,
    as_batch,
    as_tensors,
    check_loader,
    count,
    cut,
    first_tensor,
    inputs_of,
    joined_weights,
    move,
)
from bbh.likelihoods import P, Sums
from bbh.memory import LARGEST_BATCH, peak_bytes, tiling
from bbh.posterior import Posterior
from bbh.prediction.draws import Draws, evaluation_mode
from bbh.samples import Samples
from bbh.threads import Work, threads_for

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
            model and the result. At least one draw and one example are always processed at once,
            even if they take more.
        keep_draws: Keep the probabilities of every single draw (regression always does).
        precision: With ``torch.bfloat16`` or ``torch.float16`` the network computes matrix products
            and convolutions in half precision. This is faster on a GPU, and changes probabilities
            in the second or third digit. Weights are drawn, and probabilities averaged, in single
            precision.
        num_threads: Threads on a CPU. None takes one where the network, the draws and the inputs
            are so few that several threads would only wait for each other, and torch's own number
            for all else.
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
    else:
        listed = cast(list[Any], inputs) if type(inputs) is list else []
        if listed and all(isinstance(one, Tensor) for one in listed):
            raise TypeError(
                "a list of tensors may be several inputs or several batches: pass tuple(inputs) "
                "for the first, iter(inputs) for the second."
            )
        check_loader("inputs", inputs)
        home = torch.device("cpu")
        pieces = _inputs_of_all(cast(Iterable[Any], inputs))
    limits = _Limits(batch_size, memory_limit)
    return _predict(
        posterior, pieces, num_samples, samples, limits, keep_draws, home, precision, num_threads
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
    or root mean squared error) and ``nll``. Targets that the likelihood ignores, and those whose
    weight in the batch is 0, are left out; other weights do not matter.
    """
    predictive, targets, weights = _predict_all(
        posterior, loader, num_samples, samples, memory_limit, keep_draws=False
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

    limits = _Limits(None, memory_limit)
    home = torch.device("cpu")
    predictive = _predict(posterior, pieces(), num_samples, samples, limits, keep_draws, home)
    return predictive, torch.cat(targets), joined_weights(targets, weights)


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


class _Limits:
    """Divides the memory limit: a quarter for draws, a quarter for kept outputs, half for work."""

    def __init__(self, batch_size: int | None, memory_limit: int):
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: at least one example per call.")
        self.batch_size = batch_size or LARGEST_BATCH
        self.memory_limit = memory_limit
        self.draws = memory_limit // 4
        self.work = memory_limit // 2

    def check_kept(self, size: int) -> None:
        """Raises if the outputs to keep take more than their share of the memory limit."""
        if size > self.memory_limit // 4:
            raise MemoryError(
                f"the outputs of all draws take more than a quarter of memory_limit="
                f"{self.memory_limit:,} bytes. Predict fewer inputs at a time, take fewer draws, "
                "raise memory_limit, or leave out keep_draws."
            )


def _predict(
    posterior: Posterior[P],
    pieces: Iterator[Inputs],
    num_samples: int,
    samples: Mapping[str, Tensor] | None,
    limits: _Limits,
    keep_draws: bool,
    home: torch.device,
    precision: torch.dtype = torch.float32,
    num_threads: int | None = None,
) -> P:
    likelihood = posterior.likelihood
    half = None if precision == torch.float32 else precision
    keep = keep_draws or likelihood.keeps_outputs
    sums: list[Sums] = []
    kept: list[Tensor] = []
    kept_bytes = 0
    work = Work(posterior)
    if samples is None:
        checks.whole("num_samples", num_samples, 1, "draw at least one")
    with evaluation_mode(posterior), torch.no_grad():
        drawing = work(num_samples) if samples is None else 0
        with threads_for(drawing, posterior.device, num_threads):
            draws = Draws(posterior, num_samples, samples, limits.draws)
        per_example = None
        for piece in pieces:
            if not count(piece):
                continue
            with threads_for(work(draws.total, piece), posterior.device, num_threads):
                if per_example is None:
                    per_example = _bytes_per_example(posterior, piece, draws, half)
                examples, at_once = tiling(
                    per_example, count(piece), limits.work, posterior.device, limits.batch_size
                )
                for first in range(0, count(piece), examples):
                    batch = move(cut(piece, first, first + examples), posterior.device)
                    outputs: list[Tensor] = []
                    batch_sums: Sums = {}
                    for some in draws.at_most(at_once):
                        result = _outputs(posterior, batch, some, half)
                        for name, value in likelihood.sums(result).items():
                            earlier = batch_sums.get(name)
                            batch_sums[name] = value if earlier is None else earlier + value
                        if keep:
                            outputs.append(result.to(home))
                            kept_bytes += outputs[-1].nbytes
                            limits.check_kept(kept_bytes)
                    sums.append({name: value.to(home) for name, value in batch_sums.items()})
                    kept += [torch.cat(outputs)] if keep else []
    if not sums:
        raise ValueError("there is nothing to predict: the inputs are empty.")
    joined = {name: torch.cat([one[name] for one in sums]) for name in sums[0]}
    with torch.no_grad():  # a likelihood may have parameters of its own
        predictive = likelihood.predictive(
            joined, draws.total, torch.cat(kept, dim=1) if keep else None
        )
    finite = torch.isfinite(predictive.mean).flatten(1).all(1)
    if not finite.all():
        logger.warning(
            "%d of %d predictions are not finite: look for NaN in the inputs.",
            int((~finite).sum()),
            len(finite),
        )
    return predictive


def _outputs(
    posterior: Posterior[Any], inputs: Inputs, samples: Samples, half: torch.dtype | None
) -> Tensor:
    if half is None:
        return posterior(inputs, samples)
    with torch.autocast(posterior.device.type, half):
        return posterior(inputs, samples).float()


def _bytes_per_example(
    posterior: Posterior[Any], piece: Inputs, draws: Draws, half: torch.dtype | None
) -> int:
    """Peak memory of a forward pass of one example with one draw."""
    one = move(cut(piece, 0, 1), posterior.device)
    draw = draws.first()
    return max(
        1, peak_bytes(lambda: posterior.likelihood.sums(_outputs(posterior, one, draw, half)))
    )


def _device_of(inputs: Inputs) -> torch.device:
    if isinstance(inputs, PackedSequence):
        return inputs.data.device
    tensor = first_tensor(inputs)
    return torch.device("cpu") if tensor is None else tensor.device
