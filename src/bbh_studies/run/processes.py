"""Several runs at a time, each in its own process, since a small run leaves a GPU mostly idle."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from rich.console import Console

from bbh_studies.record import FILE_NAME, Record
from bbh_studies.run.execute import Failure, Outcome
from bbh_studies.run.run import Run
from bbh_studies.terminal.tables import headline
from bbh_studies.terminal.time_left import duration

LOG_NAME = "log.txt"


def execute_in_processes(
    runs: Sequence[Run],
    command: Callable[[Run], Sequence[str]],
    jobs: int,
    console: Console,
) -> Outcome:
    """Executes all runs, ``jobs`` at a time; one that fails does not stop the others.

    What a run prints goes into ``log.txt`` beside its record.

    Args:
        runs: All runs of the command.
        command: Returns the arguments of ``bbh`` that make one of the runs.
        jobs: Processes at a time.
        console: Gets one line for every run that ends.
    """
    ended: dict[Run, Record | Failure] = {}
    begun = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(_run, run, command(run), jobs): run for run in runs}
        try:
            for future in as_completed(waiting):
                run = waiting[future]
                ended[run] = future.result()
                console.print(
                    f"{run.study.name} {len(ended)}/{len(runs)} {run.title}: "
                    + _words(ended[run])
                    + _time_left(time.monotonic() - begun, len(ended), len(runs)),
                    highlight=False,
                    soft_wrap=True,
                )
        except KeyboardInterrupt:
            # The running processes were interrupted as well; the waiting ones must not start.
            pool.shutdown(cancel_futures=True)
            raise
    results = [ended[run] for run in runs]
    return Outcome(
        [one for one in results if isinstance(one, Record)],
        [one for one in results if isinstance(one, Failure)],
    )


def _run(run: Run, arguments: Sequence[str], jobs: int) -> Record | Failure:
    log = run.folder / LOG_NAME
    log.parent.mkdir(parents=True, exist_ok=True)
    # Each process gets its share of the cores; otherwise they would slow one another down.
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    with log.open("w") as file:
        code = subprocess.run(
            [sys.executable, "-m", "bbh_studies", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={"OMP_NUM_THREADS": threads} | os.environ,
            check=False,
        ).returncode
    if code == 0:
        return Record.read(run.folder / FILE_NAME)
    lines = log.read_text().strip().splitlines()
    return Failure(run, f"{lines[-1] if lines else 'without a word'} (see {log})")


def _words(result: Record | Failure) -> str:
    return headline(result) if isinstance(result, Record) else f"failed, {result.reason}"


def _time_left(seconds: float, done: int, number: int) -> str:
    return f"; {duration(seconds / done * (number - done))} left" if done < number else ""
