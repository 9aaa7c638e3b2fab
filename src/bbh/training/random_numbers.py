"""The random numbers of a training run: their state, and how processes share or divide them."""

import hashlib
import logging
import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from lightning_fabric import Fabric
from torch.utils.data import DataLoader

from bbh.processes import Processes, gathered
from bbh.training.verdicts import random_states

logger = logging.getLogger("bbh")


class PassCounter:
    """The number of passes over a loader, by which samplers for several processes shuffle.

    Fabric counts passes and tells the number to the loader's sampler, but it has no public way to
    go on with the number of an interrupted run.

    Args:
        loader: A loader that Fabric has set up; any other has no such number.
    """

    _NAME = "_num_iter_calls"

    def __init__(self, loader: object):
        self._loader = loader

    def get_state(self) -> int | None:
        """The number of passes so far; None if nothing counts them."""
        return getattr(self._loader, self._NAME, None)

    def set_state(self, state: int | None) -> None:
        """Goes on after this number of passes."""
        if state is not None and hasattr(self._loader, self._NAME):
            setattr(self._loader, self._NAME, int(state))


# What decides the order of a loader's batches, besides torch's global generator.
Order = Sequence[torch.Generator | PassCounter]


def loader_generators(loader: object) -> list[torch.Generator]:
    """The generators, besides the global one, that decide the order of a loader's batches."""
    found = [getattr(loader, "generator", None)]
    for name in ("sampler", "batch_sampler"):
        sampler = getattr(loader, name, None)
        found += [getattr(sampler, "generator", None)]
        found += [getattr(getattr(sampler, "sampler", None), "generator", None)]
    unique = {id(one): one for one in found if isinstance(one, torch.Generator)}
    return list(unique.values())


def random_state(order: Order) -> dict[str, Any]:
    """States of the random generators of torch, Python and NumPy, and of the data loader."""
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 (augmentations use it)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "loader": [one.get_state() for one in order],
    }


def restore_random_state(state: dict[str, Any], order: Order) -> None:
    """Puts all generators back to where ``random_state`` found them."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    legacy = (name, keys.numpy().astype(np.uint32), position, has_gauss, cached)
    np.random.set_state(legacy)  # noqa: NPY002
    for one, saved in zip(order, state["loader"], strict=True):
        one.set_state(saved)


@contextmanager
def random_state_kept(order: Order) -> Generator[None]:
    """After the block, all random generators are where they were before it, even if it raises."""
    before = random_state(order)
    try:
        yield
    finally:
        restore_random_state(before, order)


def seed_all(seed: int, generators: Sequence[torch.Generator] = ()) -> None:
    """Seeds the generators of torch, Python and NumPy, and those given."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    for generator in generators:
        generator.manual_seed(seed)


def draw_differently(processes: Processes) -> None:
    """Makes processes draw different random numbers, if some would draw the same.

    Gradients are averaged over processes, so different weight draws make them less noisy. The first
    process keeps its random numbers. The others are seeded with numbers that depend on the first
    one's state and on their rank alone, so that seeding all processes alike determines everything.
    """
    own = [_digest(state.numpy().tobytes()) for state in random_states(processes.device)]
    everyone = gathered(processes, own)
    if all(len(set(digests)) == processes.world_size for digests in zip(*everyone, strict=True)):
        return
    if processes.global_rank > 0:
        seed_all(_seed(everyone[0], processes.global_rank))
    else:
        logger.info(
            "processes were seeded alike: all but the first are seeded anew, so that each of the "
            "%d draws weights of its own.",
            processes.world_size,
        )


@contextmanager
def same_order(loader: object, fabric: Fabric) -> Generator[None]:
    """Within the block, all processes go through the data in the same order, to take shares of it.

    A sampler without a generator of its own would shuffle by the global one, which differs between
    processes: some examples would be in two shares and others in none.
    """
    sampler = cast(Any, loader.sampler if isinstance(loader, DataLoader) else None)
    global_one = hasattr(sampler, "generator") and sampler.generator is None
    if fabric.world_size == 1 or not global_one:
        yield
        return
    first = fabric.broadcast([_digest(torch.get_rng_state().numpy().tobytes())])
    sampler.generator = torch.Generator().manual_seed(_seed(first, 0))
    try:
        yield
    finally:
        sampler.generator = None


def _seed(digests: list[str], number: int) -> int:
    """A seed that depends on the first process's random state and a number."""
    return int(_digest(" ".join([*digests, str(number)]).encode())[:8], 16)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
