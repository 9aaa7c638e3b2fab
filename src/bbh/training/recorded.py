"""Training steps as CUDA graphs: recorded once, replayed with one launch and no word to the host.

A step of a small network is hundreds of kernels of a few microseconds; launching them from Python
takes longer than running them. Everything a step decides is therefore decided on the device: a
step whose terms are not finite leaves weights, moments and statistics as they were, and so does
every step after it, until the host looks.
"""

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam
from torch.utils import _pytree as pytree  # pyright: ignore[reportPrivateUsage]

from bbh.batches import Batch, as_batch, move
from bbh.execution import Recorded
from bbh.training.eager import EagerSteps
from bbh.training.step import DivergedError, Terms, TrainingStep, Verdict, scales_losses

logger = logging.getLogger("bbh")

# Steps taken one kernel at a time before one is recorded: libraries choose their algorithms and
# the optimizer makes its moments.
WARM_UP = 3
# How many steps are taken on trust before the host looks whether all went well.
TRUST = 50
# Every shape of batch needs its own graph; more than a few and none pays.
_MAX_SHAPES = 3
Replay = Callable[[], None]


class RecordedSteps:
    """Takes steps by replaying a recorded one, where that is possible; else as ``EagerSteps`` does.

    Batches of a new shape, of anything but tensors on the device, and networks that ask the device
    for a value run one kernel at a time.

    Args:
        step: What is taken, and recorded.
    """

    def __init__(self, step: TrainingStep):
        self.step = step
        self._eager = EagerSteps(step)
        # What a user asked for is recorded as it is.
        self._execution = step.posterior.execution or Recorded()
        # How often a shape that is to be recorded has been seen before.
        self._rehearsed: dict[Any, int] = {}
        self._recorded: dict[Any, tuple[list[Tensor], Replay]] = {}
        self._state: DeviceVerdict | None = None
        self._recorded_numbers: list[Any] = []
        self._refused = False
        self._since_look = 0

    def take(self, batch: Any, beta: float) -> dict[str, float] | None:
        """One step; its terms every so many steps, else None."""
        moved = as_batch(batch)
        leaves, shape = _signature(moved, self.step.device)
        if leaves is None:
            moved = move(moved, self.step.device)
            leaves, shape = _signature(moved, self.step.device)
        if leaves is None or not self._ready(shape, moved):
            # Such a step asks the device anyway, and must not come after one that failed.
            if self._since_look:
                self._look()
            rehearsal = self._execution if shape in self._rehearsed else None
            return self._eager.take(moved, beta, rehearsal)
        buffers, replay = self._recorded[shape]
        for buffer, leaf in zip(buffers, leaves, strict=True):
            buffer.copy_(leaf)
        assert self._state is not None
        self._state.beta.set(beta)
        for rate, group in zip(self._state.rates, self._groups(), strict=True):
            rate.set(float(group["lr"]))
        replay()
        self.step.count += 1
        self._since_look += 1
        return self._look() if self._since_look >= TRUST else None

    def means(self) -> dict[str, float]:
        """As ``EagerSteps.means``, over recorded and other steps together."""
        if self._state is not None:
            self._look()
            self._eager.add(*self._state.take_sums())
        return self._eager.means()

    def close(self) -> None:
        """Frees the recorded steps, and leaves the optimizer without their marks."""
        self._recorded.clear()
        self.step.optimizer.zero_grad(set_to_none=True)
        if self._state is not None:
            del self.step.plain_optimizer.found_inf
            self._state = None
        self._eager.close()

    def _ready(self, shape: Any, batch: Batch) -> bool:
        if self._recorded and not self._refused and self._numbers() != self._recorded_numbers:
            self._refuse("the optimizer's settings change from step to step")
        if self._refused or shape in self._recorded:
            return not self._refused
        if len(self._recorded) >= _MAX_SHAPES:
            self._rehearsed.clear()
            return False
        self._rehearsed[shape] = self._rehearsed.get(shape, 0) + 1
        if self._rehearsed[shape] <= WARM_UP:
            return False
        try:
            self._recorded[shape] = self._record(batch)
        except RuntimeError as error:
            # A value was asked for, or memory is short: nothing was computed, nothing is lost.
            self._refuse(error)
        return not self._refused

    def _refuse(self, reason: object) -> None:
        self._refused = True
        self._rehearsed.clear()
        logger.info("training without CUDA graphs: %s", reason)

    def _record(self, batch: Batch) -> tuple[list[Tensor], Replay]:
        leaves, structure = _flatten(batch)
        buffers = [leaf.clone() for leaf in leaves]
        whole = structure is not None
        fixed = Batch(*(pytree.tree_unflatten(buffers, structure) if whole else buffers))
        if self._state is None:
            self._state = DeviceVerdict(len(self._groups()), self.step.device)
            self.step.plain_optimizer.found_inf = self._state.skip
        state = self._state

        def work() -> None:
            state.add(self.step.run(fixed, state.beta.tensor, state, self._execution))

        # Rates are read from the device by the recorded step, and are plain numbers to schedules,
        # checkpoints and everyone else.
        before = [{key: group[key] for key in ("lr", "capturable")} for group in self._groups()]
        self._recorded_numbers = self._numbers()
        for group, rate in zip(self._groups(), state.rates, strict=True):
            group.update(lr=rate.tensor, capturable=True)
        self.step.optimizer.zero_grad(set_to_none=True)
        try:
            return buffers, record(work)
        finally:
            for group, own in zip(self._groups(), before, strict=True):
                group.update(own)

    def _look(self) -> dict[str, float]:
        """The last step's terms; raises if a step since the last look went wrong."""
        assert self._state is not None
        since, self._since_look = self._since_look, 0
        terms, failed, taken = self._state.read()
        if failed:
            name, value = next(
                (item for item in terms.items() if not abs(item[1]) < float("inf")),
                ("auxiliary", float("nan")),
            )
            # Steps after the failed one were counted and left no trace.
            self.step.count += taken - since
            self._state.taken.zero_()
            raise DivergedError(name, self.step.count + 1, value)
        self._state.taken.zero_()
        return terms

    def _numbers(self) -> list[Any]:
        """What is a constant in a recorded step, and what some schedules change: betas, say."""
        return [
            [group[key] for key in ("betas", "eps", "weight_decay")] for group in self._groups()
        ]

    def _groups(self) -> list[dict[str, Any]]:
        return self.step.plain_optimizer.param_groups


class _DeviceNumber:
    """A number the recorded step reads, written only when it changes."""

    def __init__(self, device: torch.device):
        self.tensor = torch.zeros((), device=device)
        self._value = 0.0

    def set(self, value: float) -> None:
        if value != self._value:
            self.tensor.fill_(value)
            self._value = value


class DeviceVerdict(Verdict):
    """Judges a recorded step on the device, and holds what such steps read and leave behind.

    A step with a value that is not finite changes nothing, and neither does any step after it,
    until the host looks.

    Attributes:
        beta: Weight of the complexity.
        rates: Learning rates of the optimizer's groups.
        skip: One where an update is to leave everything as it is, as a fused optimizer reads it.
        failed: Whether a step had a value that is not finite; it stays.
        taken: Steps that went well since the host last looked.
    """

    names = ("nll", "complexity", "auxiliary", "total", "gradient_norm")

    def __init__(self, num_groups: int, device: torch.device):
        self.beta = _DeviceNumber(device)
        self.rates = [_DeviceNumber(device) for _ in range(num_groups)]
        self.skip = torch.zeros((), device=device)
        self.failed = torch.zeros((), dtype=torch.bool, device=device)
        self.taken = torch.zeros((), dtype=torch.int64, device=device)
        self._last = torch.zeros(len(self.names), device=device)
        self._sums = torch.zeros(len(self.names), dtype=torch.float64, device=device)
        self._summed = torch.zeros((), dtype=torch.int64, device=device)

    def judge(self, terms: Terms) -> None:
        """Notes whether all is finite, for the update that follows and all after it."""
        good = torch.stack(list(terms.values())).isfinite().all()
        self.failed.logical_or_(good.logical_not())
        self.skip.copy_(self.failed)

    @contextmanager
    def undoing(self, statistics: Sequence[Tensor]) -> Generator[None]:
        """Puts the buffers back if the step failed."""
        saved = [value.clone() for value in statistics]
        yield
        for value, before in zip(statistics, saved, strict=True):
            value.copy_(torch.where(self.failed, before, value))

    def add(self, terms: Terms) -> None:
        """Adds a step's terms; those of the first failed step are kept for the error message."""
        numbers = torch.stack([terms[name] for name in self.names])
        # Terms stay as they were once a step has failed: it is that step's that explain why.
        first = self._last.isfinite().all()
        self._last.copy_(torch.where(first, numbers, self._last))
        good = self.failed.logical_not()
        self._sums.add_(torch.where(good, numbers, torch.zeros_like(numbers)))
        self._summed.add_(good)
        self.taken.add_(good)

    def read(self) -> tuple[dict[str, float], bool, int]:
        """The last terms, whether a step failed, and how many went well; one transfer."""
        parts = [self._last.double(), self.failed.view(1).double(), self.taken.view(1).double()]
        *values, failed, taken = torch.cat(parts).tolist()
        return dict(zip(self.names, values, strict=True)), bool(failed), int(taken)

    def take_sums(self) -> tuple[dict[str, float], int]:
        """Sums of terms and the number of steps since the last time; both start again at zero."""
        *values, number = torch.cat([self._sums, self._summed.view(1).double()]).tolist()
        self._sums.zero_()
        self._summed.zero_()
        return dict(zip(self.names, values, strict=True)), int(number)


def can_record(step: TrainingStep) -> bool:
    """Whether steps may be recorded: one CUDA device, and an Adam that can skip by itself."""
    fabric, optimizer = step.fabric, step.plain_optimizer
    fused = isinstance(optimizer, Adam) and all(group["fused"] for group in optimizer.param_groups)
    if fabric is None or scales_losses(fabric):
        return False
    return fabric.device.type == "cuda" and fabric.world_size == 1 and fused


def make_steps(step: TrainingStep, *, cuda_graph: bool = True) -> EagerSteps | RecordedSteps:
    """Recorded steps where that is possible and wanted, else eager ones."""
    return RecordedSteps(step) if cuda_graph and can_record(step) else EagerSteps(step)


@contextmanager
def fastest_convolutions() -> Generator[None]:
    """Meanwhile cuDNN tries its algorithms and takes the fastest, which a fixed shape repays."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def record(work: Replay) -> Replay:
    """Records what ``work`` does on the device, without doing it; the result does it."""
    graph = torch.cuda.CUDAGraph()
    device = torch.cuda.current_device()
    torch.cuda.synchronize()
    generator = torch.cuda.default_generators[device]
    before = generator.clone_state()
    try:
        # Threads that pin the next batches in memory may go on meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            work()
    except RuntimeError:
        # A recording that breaks off leaves the generator waiting for its end.
        generator.graphsafe_set_state(before)
        raise
    return graph.replay


def _flatten(batch: Batch) -> tuple[list[Any], Any]:
    """All leaves, without the weights a batch does not have; no structure if each is a tensor."""
    parts = [part for part in batch if part is not None]
    if isinstance(batch.inputs, Tensor):
        return parts, None
    return pytree.tree_flatten(tuple(parts))


def _signature(batch: Batch, device: torch.device) -> tuple[list[Tensor] | None, Any]:
    """The batch's tensors with what must be equal for a graph to serve; None if it never can."""
    leaves, structure = _flatten(batch)
    if not all(isinstance(leaf, Tensor) and leaf.device == device for leaf in leaves):
        return None, None
    return leaves, (structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
