"""Times several pieces of work in turn: each of them once per round.

A machine that slows down for a minute slows all contenders down, so ratios of medians hold where
times do not.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from bbh.memory import peak_bytes


class Task(NamedTuple):
    """A piece of work under its name.

    Attributes:
        name: A name that is unique among the tasks timed together.
        work: The function to time.
        repeats: Calls in a row that make one turn; a turn's time is divided by it. It should be
            above one if a call is short, or if caches that other tasks have filled slow it down.
    """

    name: str
    work: Callable[[], object]
    repeats: int = 1


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, one number per round.

    >>> Timing((1.0, 2.0, 3.0, 4.0, 100.0)).median
    3.0
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over all rounds."""
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The lower and the upper quartile: the middle half of all rounds lies between them."""
        if len(self.seconds) == 1:
            return self.seconds[0], self.seconds[0]
        lower, _, upper = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return lower, upper

    def milliseconds(self, name: str) -> dict[str, float]:
        """Median and quartiles as metrics of a record."""
        lower, upper = self.quartiles
        return {
            f"{name}_ms": 1e3 * self.median,
            f"{name}_ms_q1": 1e3 * lower,
            f"{name}_ms_q3": 1e3 * upper,
        }


class Timed(NamedTuple):
    """Times of the tasks by name, and for tasks without times the reason."""

    timings: dict[str, Timing]
    failures: dict[str, str]


def interleaved(
    tasks: Sequence[Task],
    *,
    rounds: int,
    warm_up: int = 1,
    device: torch.device | None = None,
    seed: int = 0,
    on_turn: Callable[[str], object] | None = None,
) -> Timed:
    """Times every task once per round; each round has a new random order.

    Args:
        tasks: What to time. One that raises is left out from then on and does not stop the rest.
        rounds: Turns of each task that count.
        warm_up: Turns of each task before those, which do not count.
        device: Where the work is done; None is the CPU.
        seed: Seed of the random orders.
        on_turn: Called with each task's name after its turn.
    """
    device = device or torch.device("cpu")
    order = list(tasks)
    shuffle = random.Random(seed).shuffle
    seconds: dict[str, list[float]] = {task.name: [] for task in tasks}
    failures: dict[str, str] = {}
    for number in range(warm_up + rounds):
        shuffle(order)
        for task in order:
            if task.name in failures:
                continue
            try:
                taken = clock(task.work, task.repeats, device)
            except Exception as error:  # a contender may raise any exception
                failures[task.name] = reason(error)
                continue
            if number >= warm_up:
                seconds[task.name].append(taken)
            if on_turn is not None:
                on_turn(task.name)
    timings = {
        name: Timing(tuple(taken)) for name, taken in seconds.items() if name not in failures
    }
    return Timed(timings, failures)


def clock(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Seconds of one call, including all its work on the device."""
    if device.type != "cuda":
        started = time.perf_counter()
        for _ in range(repeats):
            work()
        return (time.perf_counter() - started) / repeats
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    first.record()
    for _ in range(repeats):
        work()
    last.record()
    torch.cuda.synchronize(device)
    return first.elapsed_time(last) / 1e3 / repeats


def peak_memory(work: Callable[[], object], device: torch.device) -> int | None:
    """Most bytes that a call's tensors hold at once; None if they cannot be followed."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    try:
        # ``peak_bytes`` switches gradients off, and a training step needs them.
        return peak_bytes(torch.enable_grad()(work))
    except Exception:  # some code does not run while its tensors are followed
        return None


def reason(error: BaseException) -> str:
    """One line about an error."""
    lines: list[Any] = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
