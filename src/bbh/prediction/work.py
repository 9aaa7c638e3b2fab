"""The work of a prediction: all draws for all examples, in one process or shared by several."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bbh import checks
from bbh.batches import Inputs, count, cut, move
from bbh.likelihoods import Sums
from bbh.posterior import Posterior
from bbh.prediction.draws import Draws, evaluation_mode
from bbh.prediction.limits import Limits, Tiles, outputs_of
from bbh.prediction.results import Results
from bbh.processes import first_ones_random_numbers, gathered_or_raised
from bbh.threads import Work, threads_for

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Wanted(NamedTuple):
    """What is to be predicted with which draws.

    Attributes:
        num_samples: The number of weight draws.
        samples: Draws to use instead of new ones.
        limits: How much memory to use.
        keep: Whether to keep the outputs of every draw.
        home: The device of the results.
        num_pieces: The number of batches, if it is known.
        precision: The type in which the network computes.
        num_threads: Threads on a CPU; None for as many as suit the work.
    """

    num_samples: int
    samples: Mapping[str, Tensor] | None
    limits: Limits
    keep: bool
    home: torch.device
    num_pieces: int | None
    precision: torch.dtype = torch.float32
    num_threads: int | None = None


class Found(NamedTuple):
    """Results for some examples.

    Attributes:
        sums: Sums over draws.
        outputs: The outputs of all draws, if they are kept.
        num_draws: The number of draws.
        sizes: The number of examples of every batch; 0 for those of other processes.
    """

    sums: Sums
    outputs: Tensor | None
    num_draws: int
    sizes: list[int]


def found_here(posterior: Posterior[Any], pieces: Iterator[Inputs | None], wanted: Wanted) -> Found:
    """Results for all batches; those that are None belong to other processes."""
    half = None if wanted.precision == torch.float32 else wanted.precision
    limits, likelihood, device = wanted.limits, posterior.likelihood, posterior.device
    work = Work(posterior)
    if wanted.samples is None:
        checks.whole("num_samples", wanted.num_samples, 1, "draw at least one")
    sizes: list[int] = []
    with evaluation_mode(posterior), torch.no_grad():
        drawing = work(wanted.num_samples) if wanted.samples is None else 0
        with threads_for(drawing, device, wanted.num_threads):
            draws = Draws(
                posterior,
                wanted.num_samples,
                wanted.samples,
                limits.draws,
                later=wanted.num_pieces == 1,
            )
        tiles = results = None
        for piece in pieces:
            sizes.append(0 if piece is None else count(piece))
            if piece is None or not sizes[-1]:
                continue
            with threads_for(work(draws.total, piece), device, wanted.num_threads):
                if tiles is None or results is None:
                    tiles = Tiles(posterior, piece, draws, limits, half)
                    check = limits.check_kept if wanted.keep else None
                    # A loader's batches are as large as the first, but for the last.
                    room = sizes[-1] * (wanted.num_pieces or 1)
                    results = Results(draws.total, sizes[-1], room, wanted.home, check)
                examples, at_once = tiles.of(piece)
                again = wanted.num_pieces != 1 or examples < sizes[-1]
                for first in range(0, sizes[-1], examples):
                    batch = move(cut(piece, first, first + examples), device)
                    for some in draws.at_most(at_once, again=again):
                        outputs = outputs_of(posterior, batch, some, half)
                        results.add(outputs, likelihood.sums(outputs))
                    results.end_batch()
    if results is None:
        return Found({}, None, draws.total, sizes)
    return Found(results.sums(), results.outputs(), draws.total, sizes)


def found_together(
    posterior: Posterior[Any], pieces: Iterator[Inputs], wanted: Wanted, fabric: "Fabric"
) -> Found:
    """What all processes predicted, in the order of the examples."""
    number, rank = fabric.world_size, fabric.global_rank
    known = wanted.num_pieces
    # Results travel through the host.
    here = wanted._replace(
        home=torch.device("cpu"), num_pieces=None if known is None else -(-known // number)
    )

    def work() -> Found:
        mine = (piece if index % number == rank else None for index, piece in enumerate(pieces))
        return found_here(posterior, mine, here)

    with first_ones_random_numbers(fabric):
        everyone = gathered_or_raised(fabric, work)
    lengths = [len(one.sizes) for one in everyone]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"processes were given different numbers of batches: {lengths}. "
            "Give all the same inputs; they are shared out here."
        )
    return _in_order(everyone, wanted.home)


def _in_order(everyone: list[Found], home: torch.device) -> Found:
    """One result from those of all processes, which dealt the batches out in turn."""
    some = next((one for one in everyone if sum(one.sizes)), everyone[0])
    owners = [index % len(everyone) for index in range(len(some.sizes))]
    sizes = [everyone[owner].sizes[index] for index, owner in enumerate(owners)]

    def dealt(tables: list[Tensor | None], axis: int) -> Tensor:
        parts = [
            None if table is None else iter(table.split(one.sizes, dim=axis))
            for table, one in zip(tables, everyone, strict=True)
        ]
        # A process has empty parts for the batches of the others.
        rounds = [[None if part is None else next(part) for part in parts] for _ in owners]
        chosen = [row[owner] for row, owner in zip(rounds, owners, strict=True)]
        return torch.cat([one for one in chosen if one is not None], dim=axis).to(home)

    sums = {name: dealt([one.sums.get(name) for one in everyone], 0) for name in some.sums}
    outputs = None
    if some.outputs is not None:
        outputs = dealt([one.outputs for one in everyone], 1)
    return Found(sums, outputs, some.num_draws, sizes)
