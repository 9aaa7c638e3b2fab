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
    """The results of a command.

    Attributes:
        records: Records of all finished runs.
        failures: The runs that failed.
        num_kept: How many of the records were there before.
    """

    records: list[Record]
    failures: list[Failure]
    num_kept: int = 0


def execute(
    runs: Sequence[Run],
    *,
    data: Path | None = None,
    device: str = "auto",
    resume: bool = False,
    force: bool = False,
    console: Console,
) -> Outcome:
    """Executes all runs; one that fails, for whatever reason, does not stop the others.

    Nobody else can write to the folders of these runs meanwhile.

    Args:
        runs: All runs of the command. Those that are finished are kept.
        data: Folder with the data files; None for the user's folder or the cache.
        device: auto, cpu or cuda.
        resume: Go on with interrupted runs, which are refused otherwise.
        force: Train finished and interrupted runs anew.
        console: Shows progress.
    """
    check_before(runs, device, resume=resume, force=force)
    records: list[Record] = []
    failures: list[Failure] = []
    kept = 0
    with ExitStack() as locks:
        for run in runs:
            locks.enter_context(FolderLock(run.folder))
        for run in runs if force else ():
            # All at once: what an interruption leaves must not look finished.
            run.discard()
        train = runs[0].study.runner(data)
        progress = locks.enter_context(StudyProgress(runs, console))
        for run in runs:
            progress.begin()
            started = time.monotonic()
            finished = run.is_finished
            try:
                record = (
                    Record.read(run.folder / FILE_NAME)
                    if finished
                    else train(run, device=device, resume=resume, progress=progress)
                )
            except Exception as error:
                reason = str(error).split(". ")[0] or type(error).__name__
                if not isinstance(error, _EXPECTED):
                    logger.exception("%s", run.title)
                failures.append(Failure(run, reason))
                progress.end(f"failed, {reason}", trained=False)
                continue
            run.forget()
            records.append(record)
            kept += finished
            state = "was there" if finished else duration(time.monotonic() - started)
            progress.end(f"{headline(record)} ({state})", trained=not finished)
    return Outcome(records, failures, kept)
