"""Several runs at a time, each in its own process, since a small run leaves a GPU mostly idle."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from typing import Any

from rich.console import Console

from bbh_studies.record import FILE_NAME, Record
from bbh_studies.run.execute import Failure, Outcome
from bbh_studies.run.lock import FolderLock
from bbh_studies.run.run import Run
from bbh_studies.terminal.tables import headline
from bbh_studies.terminal.time_left import duration

LOG_NAME = "log.txt"


def execute_in_processes(
    runs: Sequence[Run],
    command: Callable[[Run], Sequence[str]],
    jobs: int,
    console: Console,
    *,
    force: bool = False,
) -> Outcome:
    """Executes all runs, ``jobs`` at a time; one that fails does not stop the others.

    What a run prints goes into ``log.txt`` beside its record.

    Args:
        runs: All runs of the command.
        command: Returns the arguments of ``bbh`` that make one of the runs.
        jobs: Processes at a time.
        console: Gets one line for every run that ends.
        force: Train finished and interrupted runs anew; else finished ones are kept.
    """
    ended: dict[Run, Record | Failure] = {}

    def end(run: Run, result: Record | Failure, more: str) -> None:
        ended[run] = result
        line = f"{run.study.name} {len(ended)}/{len(runs)} {run.title}: {_words(result)}{more}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    begun = time.monotonic()
    children = Children()
    with ExitStack() as locks, ThreadPoolExecutor(jobs) as pool:
        held = {run: locks.enter_context(FolderLock(run.folder)) for run in runs}
        for run in runs if force else ():
            run.discard()
        kept = [run for run in runs if run.is_finished]
        for run in kept:
            end(run, _read(run), " (was there)")
        waiting = {
            pool.submit(_run, run, command(run), jobs, held[run], children): run
            for run in runs
            if run not in kept
        }
        try:
            for done, future in enumerate(as_completed(waiting), 1):
                left = _time_left(time.monotonic() - begun, done, len(waiting))
                end(waiting[future], future.result(), left)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            children.stop()
            raise
    results = [ended[run] for run in runs]
    return Outcome(
        [one for one in results if isinstance(one, Record)],
        [one for one in results if isinstance(one, Failure)],
        sum(isinstance(ended[run], Record) for run in kept),
    )


class Children:
    """The processes that are running, which the user may want to stop."""

    def __init__(self):
        self._running: set[subprocess.Popen[Any]] = set()
        self._stopped = False
        self._changing = threading.Lock()

    def run(self, arguments: Sequence[str], **options: Any) -> int:
        """Runs a process to its end, and returns its exit code."""
        with self._changing:
            if self._stopped:
                return 1
            # In a process group of its own: Ctrl-C reaches only the parent, which passes it on.
            # It would otherwise arrive twice, and the second signal stops at once.
            group = 0 if os.name == "posix" else None
            process = subprocess.Popen(arguments, process_group=group, **options)
            self._running.add(process)
        try:
            return process.wait()
        finally:
            with self._changing:
                self._running.discard(process)

    def stop(self) -> None:
        """Lets every process finish its epoch and write a checkpoint; a second Ctrl-C does not."""
        with self._changing:
            self._stopped = True
            running = list(self._running)
        try:
            _terminate(running)
        except KeyboardInterrupt:
            _terminate(running)


def _terminate(processes: Sequence[subprocess.Popen[Any]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


def _run(
    run: Run, arguments: Sequence[str], jobs: int, lock: FolderLock, children: Children
) -> Record | Failure:
    log = run.folder / LOG_NAME
    # Each process gets its share of the cores; otherwise they would slow one another down.
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    try:
        with log.open("w") as file:
            lock.release()  # for the process to take
            code = children.run(
                [sys.executable, "-m", "bbh_studies", *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={"OMP_NUM_THREADS": threads} | os.environ,
            )
            lock.take()
        if code == 0:
            return _read(run)
    except (OSError, ValueError) as error:
        return Failure(run, str(error))
    lines = log.read_text().strip().splitlines()
    return Failure(run, f"{lines[-1] if lines else 'without a word'} (see {log})")


def _read(run: Run) -> Record | Failure:
    try:
        return Record.read(run.folder / FILE_NAME)
    except (OSError, ValueError) as error:
        return Failure(run, str(error))


def _words(result: Record | Failure) -> str:
    return headline(result) if isinstance(result, Record) else f"failed, {result.reason}"


def _time_left(seconds: float, done: int, number: int) -> str:
    return f"; {duration(seconds / done * (number - done))} left" if done < number else ""
