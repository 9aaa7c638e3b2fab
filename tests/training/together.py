"""Runs a function in two processes that train together."""

import multiprocessing
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric

# Processes are forked from one that has imported everything, which takes seconds.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["bbh", "lightning_fabric", "scenarios", "training.small"])
_PATIENCE = 120  # seconds, after which processes count as hanging


class Ended(NamedTuple):
    """How a process ended: its exit code, and what the function returned if it did return."""

    code: int | None
    result: Any


def ended(work: Callable[..., Any], *arguments: Any, number: int = 2) -> list[Ended]:
    """How each of the processes ended that called ``work(fabric, *arguments)``."""
    with socket.socket() as found, tempfile.TemporaryDirectory() as folder:
        found.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(found.getsockname()[1])}
        found.close()
        files = [Path(folder) / str(rank) for rank in range(number)]
        processes = [
            _CONTEXT.Process(target=_process, args=(work, arguments, rank, number, file, place))
            for rank, file in enumerate(files)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(_PATIENCE)
        codes = [process.exitcode for process in processes]
        for process in processes:
            process.kill()
        results = [torch.load(f, weights_only=False) if f.exists() else None for f in files]
    return [Ended(*both) for both in zip(codes, results, strict=True)]


def together(work: Callable[..., Any], *arguments: Any, number: int = 2) -> list[Any]:
    """What ``work(fabric, *arguments)`` returned in each of the processes."""
    found = ended(work, *arguments, number=number)
    assert [one.code for one in found] == [0] * number
    return [one.result for one in found]


def _process(
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    rank: int,
    number: int,
    file: Path,
    place: dict[str, str],
) -> None:
    # What torchrun sets.
    os.environ |= place | {
        "TORCHELASTIC_RUN_ID": "tests",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(number),
    }
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=number, strategy="ddp")
    fabric.launch()
    torch.save(work(fabric, *arguments), file)
    torch.distributed.destroy_process_group()
