"""Training steps as CUDA graphs: recorded once, then replayed with a single launch.

A step of a small network consists of hundreds of kernels of a few microseconds each, and launching
them from Python takes longer than running them. During a replay the host (the Python program) reads
nothing from the device, so everything a step decides is decided on the device: if the terms of a
step are not finite, then this step and all steps after it leave weights, helper networks, optimizer
moments and batch-norm statistics unchanged, until the host checks.
"""

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer
from torch.utils import _pytree as pytree  # pyright: ignore[reportPrivateUsage]

from bbh.batches import Batch, as_batch, move
from bbh.execution import Recorded
from bbh.generators.factored.optimizer import FactoredOptimizer
from bbh.training.device_verdict import DeviceVerdict
from bbh.training.eager import EagerSteps
from bbh.training.step import TrainingStep, scales_losses
from bbh.training.verdicts import DivergedError, random_states, restore_random_states

logger = logging.getLogger("bbh")

# The number of eager steps before a step is recorded. In these steps libraries choose their
# algorithms and the optimizer creates its moments, neither of which may happen while recording.
WARM_UP = 3
# The number of replayed steps after which the host checks whether all terms were finite.
TRUST = 50
# The largest number of graphs. Every batch shape needs its own, and recording one only pays if the
# shape occurs often.
_MAX_SHAPES = 3
Replay = Callable[[], None]


class RecordedSteps:
    """Takes training steps by replaying a recorded one where possible, else like ``EagerSteps``.

    Steps are not replayed for batches of a new shape, for batches that hold anything but tensors,
    and for networks that read values from the device.

    Args:
        step: The training step to record and take.
    """

    def __init__(self, step: TrainingStep):
        self.step = step
        self._eager = EagerSteps(step)
        # If the user chose an execution, that one is recorded.
        self._execution = step.posterior.execution or Recorded()
        # For each batch shape not yet recorded, the number of its eager steps so far.
        self._rehearsed: dict[Any, int] = {}
        self._recorded: dict[Any, tuple[list[Tensor], Replay]] = {}
        self._state: DeviceVerdict | None = None
        self._recorded_settings: list[dict[str, Any]] = []
        self._refused = False
        # States of the random generators before each replay since the last check.
        self._since_look: list[list[Tensor]] = []

    def take(self, batch: Any, beta: float) -> dict[str, float] | None:
        """Takes one step.

        Returns the step's terms, or None after most replayed steps: reading the terms makes the
        host wait for the device, so it is done only every ``TRUST`` replays.
        """
        moved = as_batch(batch)
        leaves, shape = _signature(moved, self.step.device)
        if leaves is None:
            moved = move(moved, self.step.device)
            leaves, shape = _signature(moved, self.step.device)
        if leaves is None or not self._ready(shape, moved):
            # An eager step reads from the device anyway, and it must not be taken if a replayed
            # step before it failed.
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
        self._since_look.append(random_states(self.step.device))
        replay()
        self.step.count += 1
        return self._look() if len(self._since_look) >= TRUST else None

    def means(self) -> dict[str, float]:
        """Like ``EagerSteps.means``, over replayed and eager steps together."""
        if self._state is not None:
            self._look()
            self._eager.add(*self._state.take_sums())
        return self._eager.means()

    def close(self) -> None:
        """Frees the recorded graphs and removes what recording added to the optimizer."""
        self._recorded.clear()
        self.step.optimizer.zero_grad(set_to_none=True)
        if self._state is not None:
            del self.step.plain_optimizer.found_inf
            self._state = None
        self._eager.close()

    def _ready(self, shape: Any, batch: Batch) -> bool:
        if self._recorded and not self._refused and self._settings() != self._recorded_settings:
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
            # The network read a value from the device, or memory ran out. Recording executes
            # nothing, so nothing is lost.
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

        # The recorded step reads learning rates from tensors on the device, and torch's optimizers
        # want to be told that they are recorded. Schedules, checkpoints and all other code expect
        # plain numbers, which are put back after recording.
        before = [dict(group) for group in self._groups()]
        self._recorded_settings = self._settings()
        for group, rate in zip(self._groups(), state.rates, strict=True):
            group.update(lr=rate.tensor, capturable=True)
        self.step.optimizer.zero_grad(set_to_none=True)
        try:
            return buffers, record(work)
        finally:
            for group, own in zip(self._groups(), before, strict=True):
                group.clear()
                group.update(own)

    def _look(self) -> dict[str, float]:
        """Reads the last step's terms; raises if a step since the last check failed."""
        assert self._state is not None
        since, self._since_look = self._since_look, []
        terms, failed, taken = self._state.read()
        if failed:
            name, value = next(
                (item for item in terms.items() if not abs(item[1]) < float("inf")),
                ("auxiliary", float("nan")),
            )
            # The failed step and all later ones were counted, although they changed nothing.
            self.step.count += taken - len(since)
            if taken < len(since):
                restore_random_states(self.step.device, since[taken])
            self._state.taken.zero_()
            raise DivergedError(name, self.step.count + 1, value)
        self._state.taken.zero_()
        return terms

    def _settings(self) -> list[dict[str, Any]]:
        """Optimizer settings that a graph contains as constants, but some schedules change."""
        return [
            {name: value for name, value in group.items() if name not in ("params", "lr")}
            for group in self._groups()
        ]

    def _groups(self) -> list[dict[str, Any]]:
        return self.step.plain_optimizer.param_groups


def can_record(step: TrainingStep) -> bool:
    """Whether steps may be recorded: on one CUDA device, if the optimizer can be recorded."""
    fabric = step.fabric
    if fabric is None or scales_losses(fabric):
        return False
    one_gpu = fabric.device.type == "cuda" and fabric.world_size == 1
    return one_gpu and can_record_optimizer(step.plain_optimizer)


def can_record_optimizer(optimizer: Optimizer) -> bool:
    """Whether an optimizer reads its rate on the device, and can skip an update by a flag there.

    ``FactoredOptimizer`` promises that and says what it means; torch's fused Adam does so too.
    """
    if isinstance(optimizer, Adam):
        return all(group["fused"] for group in optimizer.param_groups)
    return isinstance(optimizer, FactoredOptimizer)


def make_steps(step: TrainingStep, *, cuda_graph: bool = True) -> EagerSteps | RecordedSteps:
    """Recorded steps if ``cuda_graph`` is true and recording is possible, else eager steps."""
    return RecordedSteps(step) if cuda_graph and can_record(step) else EagerSteps(step)


@contextmanager
def fastest_convolutions() -> Generator[None]:
    """Within this context cuDNN times its algorithms for each shape and uses the fastest.

    The time for the trials is regained when a shape is used again and again, as in a graph.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def record(work: Replay) -> Replay:
    """Records the kernels that ``work`` launches without running them; returns the replay."""
    graph = torch.cuda.CUDAGraph()
    device = torch.cuda.current_device()
    torch.cuda.synchronize()
    generator = torch.cuda.default_generators[device]
    before = generator.clone_state()
    try:
        # Only this thread is recorded: threads that pin the next batches in memory may continue.
        with (
            _gradients_from_several_streams(),
            torch.cuda.graph(graph, capture_error_mode="thread_local"),
        ):
            work()
    except RuntimeError:
        # A failed recording leaves the random generator in capture mode: restore its state.
        generator.graphsafe_set_state(before)
        raise
    return graph.replay


@contextmanager
def _gradients_from_several_streams() -> Generator[None]:
    """Within this context torch does not warn that a parameter's gradients come from two streams.

    Where draws are the parameters themselves, cost and likelihood both send gradients to them, and
    these have streams of their own (``bbh.execution.Fork``). Torch lets one wait for the other.
    """
    # Older versions do not warn.
    warn = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
    if warn is None:
        yield
        return
    warn(False)
    try:
        yield
    finally:
        warn(True)


def _flatten(batch: Batch) -> tuple[list[Any], Any]:
    """The leaves of a batch and their tree structure, which is None if the inputs are one tensor.

    Example weights are left out if the batch has none.
    """
    parts = [part for part in batch if part is not None]
    if isinstance(batch.inputs, Tensor):
        return parts, None
    return pytree.tree_flatten(tuple(parts))


def _signature(batch: Batch, device: torch.device) -> tuple[list[Tensor] | None, Any]:
    """The batch's tensors, and the structure, shapes and dtypes that select its graph.

    Both are None if no graph can take the batch, since it has leaves that are not tensors on the
    device.
    """
    leaves, structure = _flatten(batch)
    if not all(isinstance(leaf, Tensor) and leaf.device == device for leaf in leaves):
        return None, None
    return leaves, (structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
