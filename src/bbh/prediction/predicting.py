"""predict and evaluate: batched over data and weight draws, within a memory limit."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

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
    move,
)
from bbh.likelihoods import P, Sums
from bbh.memory import LARGEST_BATCH, peak_bytes, tiling
from bbh.posterior import Posterior
from bbh.prediction.draws import Draws, evaluation_mode
from bbh.processes import first_ones_random_numbers, gathered_or_raised
from bbh.samples import Samples

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
            model and the result. At least one draw and one example are always processed at once,
            even if they take more.
        keep_draws: Keep the probabilities of every single draw (regression always does).
        precision: With ``torch.bfloat16`` or ``torch.float16`` the network computes matrix products
            and convolutions in half precision. This is faster on a GPU, and changes probabilities
            in the second or third digit. Weights are drawn, and probabilities averaged, in single
            precision.
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
        pieces = _shares(cast(Inputs, inputs), 1 if fabric is None else fabric.world_size)
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
    keep = keep_draws or posterior.likelihood.keeps_outputs
    wanted = _Wanted(num_samples, samples, limits, keep, home, precision)
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
    or root mean squared error) and ``nll``. With ``fabric`` several processes share the batches, as
    in ``predict``; each reads the whole loader.
    """
    _check_posterior(posterior)
    check_loader("loader", loader)
    targets: list[Tensor] = []

    def pieces() -> Iterator[Inputs]:
        for batch in loader:
            inputs, known, _ = as_batch(batch)
            targets.append(known.cpu())
            yield inputs

    limits = _Limits(None, memory_limit)
    keep = posterior.likelihood.keeps_outputs
    wanted = _Wanted(num_samples, samples, limits, keep, torch.device("cpu"))
    predictive = _predict(posterior, pieces(), wanted, fabric)
    return posterior.likelihood.metrics(predictive, torch.cat(targets))


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


class _Wanted(NamedTuple):
    """What is to be predicted with which draws.

    Attributes:
        num_samples: The number of weight draws.
        samples: Draws to use instead of new ones.
        limits: How much memory to use.
        keep: Whether to keep the outputs of every draw.
        home: The device of the results.
        precision: The type in which the network computes.
    """

    num_samples: int
    samples: Mapping[str, Tensor] | None
    limits: _Limits
    keep: bool
    home: torch.device
    precision: torch.dtype = torch.float32


class _Rows(NamedTuple):
    """Results for some examples: sums over draws, the outputs of all draws, the number of draws."""

    sums: Sums
    outputs: Tensor | None
    num_draws: int


def _predict(
    posterior: Posterior[P], pieces: Iterator[Inputs], wanted: _Wanted, fabric: "Fabric | None"
) -> P:
    if fabric is None or fabric.world_size == 1:
        found = [one for one in _predicted(posterior, pieces, wanted) if one is not None]
    else:
        found = _predicted_together(posterior, pieces, wanted, fabric)
    if not found:
        raise ValueError("there is nothing to predict: the inputs are empty.")
    sums = {name: torch.cat([one.sums[name] for one in found]) for name in found[0].sums}
    outputs = [one.outputs for one in found if one.outputs is not None]
    with torch.no_grad():  # a likelihood may have parameters of its own
        predictive = posterior.likelihood.predictive(
            sums, found[0].num_draws, torch.cat(outputs, dim=1) if outputs else None
        )
    finite = torch.isfinite(predictive.mean).flatten(1).all(1)
    if not finite.all():
        logger.warning(
            "%d of %d predictions are not finite: look for NaN in the inputs.",
            int((~finite).sum()),
            len(finite),
        )
    return predictive


def _predicted_together(
    posterior: Posterior[Any], pieces: Iterator[Inputs], wanted: _Wanted, fabric: "Fabric"
) -> list[_Rows]:
    """What all processes predicted, in the order of the examples."""
    number, rank = fabric.world_size, fabric.global_rank
    # Results travel through the host.
    here = wanted._replace(home=torch.device("cpu"))

    def work() -> list[_Rows | None]:
        mine = (piece if index % number == rank else None for index, piece in enumerate(pieces))
        return list(_predicted(posterior, mine, here))

    with first_ones_random_numbers(fabric):
        everyone = gathered_or_raised(fabric, work)
    if len({len(one) for one in everyone}) > 1:
        raise ValueError(
            f"processes were given different numbers of batches: {[len(one) for one in everyone]}. "
            "Give all the same inputs; they are shared out here."
        )
    dealt = [everyone[index % number][index] for index in range(len(everyone[0]))]
    return [
        one._replace(
            sums={name: value.to(wanted.home) for name, value in one.sums.items()},
            outputs=None if one.outputs is None else one.outputs.to(wanted.home),
        )
        for one in dealt
        if one is not None
    ]


def _predicted(
    posterior: Posterior[Any], pieces: Iterator[Inputs | None], wanted: _Wanted
) -> Iterator[_Rows | None]:
    """Results for every piece; None for one without examples, or that another process has."""
    half = None if wanted.precision == torch.float32 else wanted.precision
    limits, kept_bytes, per_example = wanted.limits, 0, None
    with evaluation_mode(posterior), torch.no_grad():
        draws = Draws(posterior, wanted.num_samples, wanted.samples, limits.draws)
        for piece in pieces:
            if piece is None or not count(piece):
                yield None
                continue
            if per_example is None:
                per_example = _bytes_per_example(posterior, piece, draws, half)
            examples, at_once = tiling(
                per_example, count(piece), limits.work, posterior.device, limits.batch_size
            )
            sums: list[Sums] = []
            kept: list[Tensor] = []
            for first in range(0, count(piece), examples):
                batch = move(cut(piece, first, first + examples), posterior.device)
                outputs: list[Tensor] = []
                batch_sums: Sums = {}
                for some in draws.at_most(at_once):
                    result = _outputs(posterior, batch, some, half)
                    for name, value in posterior.likelihood.sums(result).items():
                        batch_sums[name] = batch_sums[name] + value if name in batch_sums else value
                    if wanted.keep:
                        outputs.append(result.to(wanted.home))
                        kept_bytes += outputs[-1].nbytes
                        limits.check_kept(kept_bytes)
                sums.append({name: value.to(wanted.home) for name, value in batch_sums.items()})
                kept += [torch.cat(outputs)] if wanted.keep else []
            joined = {name: torch.cat([one[name] for one in sums]) for name in sums[0]}
            yield _Rows(joined, torch.cat(kept, dim=1) if wanted.keep else None, draws.total)


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
