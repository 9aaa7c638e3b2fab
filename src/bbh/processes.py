"""What processes that train or predict together tell each other."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from bbh.frozen import Frozen

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")


@runtime_checkable
class Processes(Protocol):
    """Processes that work together: what Fabric knows about them, or another framework."""

    @property
    def world_size(self) -> int:
        """How many there are."""
        ...

    @property
    def global_rank(self) -> int:
        """The number of this one."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of this one."""
        ...

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """What one of them passes, in all of them."""
        ...


def gathered(processes: Processes, value: T) -> list[T]:
    """The values that all processes pass, in the order of their ranks; the same list in each."""
    return [processes.broadcast(value, src=rank) for rank in range(processes.world_size)]


def gathered_or_raised(fabric: "Fabric", work: Callable[[], T]) -> list[T]:
    """What the work of every process gives; if it fails in one, all of them raise."""
    result: T | None = None
    problem: Exception | None = None
    try:
        result = work()
    except Exception as error:
        problem = error
    problems = gathered(fabric, None if problem is None else f"{problem}")
    if problem is not None:
        raise problem
    for rank, text in enumerate(problems):
        if text is not None:
            raise RuntimeError(f"process {rank} of {fabric.world_size} failed: {text}")
    return gathered(fabric, result)  # pyright: ignore[reportReturnType]


@contextmanager
def first_ones_random_numbers(fabric: "Fabric") -> Generator[None]:
    """Within the block all processes have the random numbers of the first one.

    Afterwards the first one goes on from there, and the others where they were before.
    """
    state = fabric.broadcast(torch.get_rng_state())
    if fabric.global_rank == 0:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(state)
        yield


def averaged(fabric: "Fabric", tensors: Sequence[Tensor]) -> list[Tensor]:
    """Means over all processes. A value that is not finite in one is not finite in the means."""
    # In a single message, in which no sum of finite numbers overflows.
    joined = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
    # Fabric's own function waits for all processes first, which takes as long again.
    torch.distributed.all_reduce(joined)
    parts = (joined / fabric.world_size).split([tensor.numel() for tensor in tensors])
    return [part.view_as(own).to(own.dtype) for part, own in zip(parts, tensors, strict=True)]


def share(fabric: "Fabric", tensors: Sequence[Tensor]) -> None:
    """Gives these tensors the values that they have in the first process."""
    if fabric.world_size > 1:
        values = fabric.broadcast([tensor.cpu() for tensor in tensors])
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def share_frozen(fabric: "Fabric", frozen: Frozen) -> None:
    """Gives frozen parameters the first process's values, unless digests tell that they are equal.

    They may be the user's own tensors, which are not written to.
    """
    if fabric.world_size == 1 or not len(frozen):
        return
    own = frozen.digests()
    if all(torch.equal(own, other) for other in gathered(fabric, own)):
        return
    for name, value in frozen().items():
        received = value.clone()
        torch.distributed.broadcast(received, 0)
        frozen.replace({name: received})
