"""Executes runs one after the other; one that fails does not stop the others."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from bbh_studies.record import FILE_NAME, Record
from bbh_studies.run.plan import check_before
from bbh_studies.run.run import Run
from bbh_studies.terminal.live import StudyProgress
from bbh_studies.terminal.tables import headline
from bbh_studies.terminal.time_left import duration


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
    """Executes all runs; one that diverges or runs out of memory does not stop the others."""
    check_before(runs, device, resume)
    train = runs[0].study.runner(data)
    outcome = Outcome([], [])
    with StudyProgress(runs, console) as progress:
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
            except (FloatingPointError, MemoryError, torch.OutOfMemoryError) as error:
                reason = str(error).split(". ")[0]
                outcome.failures.append(Failure(run, reason))
                progress.end(f"failed, {reason}", trained=False)
                continue
            run.forget()
            outcome.records.append(record)
            state = "was there" if finished else duration(time.monotonic() - started)
            progress.end(f"{headline(record)} ({state})", trained=not finished)
    return outcome
