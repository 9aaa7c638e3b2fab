"""Processes that are killed, at a moment or at the very operation on a file that is chosen."""

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Forked from a process that has imported everything, which takes seconds.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["bbh", "lightning_fabric", "scenarios", "training.small", "bbh_studies.cli", "faults.warm"]
)
PATIENCE = 300  # seconds, after which a process counts as hanging


def start_quietly() -> None:
    """Starts the process that others are forked from without a place to write to.

    All of them write to where it writes, also those that are meant to fail.
    """
    known = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    run(os.getpid)
    os.dup2(known, 2)


def run(work: Callable[..., Any], *arguments: Any, kill_after: float | None = None) -> int | None:
    """The exit code of a process that calls ``work``; None if it had to be killed as hanging.

    Args:
        work: The function to call.
        *arguments: Its arguments.
        kill_after: Seconds after which the process is killed.
    """
    process = _CONTEXT.Process(target=_quietly, args=(work, arguments))
    process.start()
    process.join(PATIENCE if kill_after is None else kill_after)
    if process.is_alive():
        process.kill()
        process.join()
        return None if kill_after is None else -signal.SIGKILL
    return process.exitcode


def _quietly(work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    work(*arguments)


class FileEvents:
    """Counts what this process does with files below a folder, and kills it at one of them.

    Args:
        folder: Events that do not name it are not counted.
        last: Number of the event at which the process is killed; None for none.
        most_bytes: If given, the process is killed later instead: where a file that it writes after
            that event grows beyond this size, in the middle of writing.
    """

    def __init__(self, folder: Path, last: int | None = None, most_bytes: int | None = None):
        self.number = 0
        self._folder = str(folder)
        self._last = last
        self._most_bytes = most_bytes
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event.partition(".")[0] not in ("open", "os", "tempfile"):
            return
        if not any(self._folder in str(one) for one in arguments if isinstance(one, str | Path)):
            return
        self.number += 1
        if self.number == self._last:
            if self._most_bytes is None:
                os.kill(os.getpid(), signal.SIGKILL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._most_bytes, self._most_bytes))
