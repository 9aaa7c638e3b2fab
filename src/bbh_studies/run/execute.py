"""Executes runs one after the other; one that fails does not stop the others."""

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from bbh_studies.record import FILE_NAME, Record
from bbh_studies.run.lock import FolderLock
from bbh_studies.run.plan import check_before
from bbh_studies.run.run import Run
from bbh_studies.terminal.live import StudyProgress
from bbh_studies.terminal.tables import headline
from bbh_studies.terminal.time_left import duration

logger = logging.getLogger("bbh")
# Errors that are about a run: its numbers, its files, its memory. Others are mistakes in a program.
_EXPECTED = (ArithmeticError, MemoryError, torch.OutOfMemoryError, OSError, ValueError)


@dataclass(frozen=True)
class Failure:
    """A run that did not reach its end, and why."""

    run: Run
    reason: str


@dataclass(frozen=True)
class Outcome:
    """The results of a command: records of finished runs, and the runs that failed."""

    records: list[Record]
    failures: list[Failure]


def execute(
    runs: Sequence[Run],
    *,
    data: Path | None = None,
    device: str = "auto",
    resume: bool = False,
    console: Console,
) -> Outcome:
    """Executes all runs; one that fails, for whatever reason, does not stop the others.

    Nobody else can write to the folders of these runs meanwhile.
    """
    check_before(runs, device, resume)
    outcome = Outcome([], [])
    with ExitStack() as locks:
        for run in runs:
            locks.enter_context(FolderLock(run.folder))
        train = runs[0].study.runner(data)
        progress = locks.enter_context(StudyProgress(runs, console))
        for run in runs:
            progress.begin()
            started = time.monotonic()
            path = run.folder / FILE_NAME
            finished = resume and path.exists()
            if not resume:
                # An interruption from here on must leave nothing that looks finished.
                run.forget()
                path.unlink(missing_ok=True)
            try:
                record = (
                    Record.read(path)
                    if finished
                    else train(run, device=device, resume=resume, progress=progress)
                )
            except Exception as error:
                reason = str(error).split(". ")[0] or type(error).__name__
                if not isinstance(error, _EXPECTED):
                    logger.exception("%s", run.title)
                outcome.failures.append(Failure(run, reason))
                progress.end(f"failed, {reason}", trained=False)
                continue
            run.forget()
            outcome.records.append(record)
            state = "was there" if finished else duration(time.monotonic() - started)
            progress.end(f"{headline(record)} ({state})", trained=not finished)
    return outcome
