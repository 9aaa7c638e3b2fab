"""How training is shown to the user: a progress bar, and TensorBoard logs if asked for."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from bbh.training.history import EpochRecord
from bbh.training.notebook_line import NotebookLine

# Seconds between updates of the bar. Reading a loss makes an accelerator wait, and more than five
# updates per second would not be noticed.
_REFRESH_SECONDS = 0.2


@runtime_checkable
class Display(Protocol):
    """Anything that can show the progress of training steps and epochs."""

    def step(self, epoch: int, step: int, terms: dict[str, float]) -> None:
        """Called after training steps.

        Args:
            epoch: The number of the epoch, counted from 0.
            step: The number of the step within the epoch, counted from 0.
            terms: The terms of the objective in this step.
        """
        ...

    def epoch(self, record: EpochRecord) -> None:
        """Called after every epoch."""
        ...

    def note(self, text: str) -> None:
        """Shows a message, such as why training stopped."""
        ...


class BarDisplay:
    """Shows training as a progress bar in the terminal."""

    def __init__(self, bar: Progress, task: TaskID, steps_per_epoch: int | None):
        self._bar = bar
        self._task = task
        self._steps_per_epoch = steps_per_epoch or 1
        self._shown = 0.0
        self._validation = ""

    def step(self, epoch: int, step: int, terms: dict[str, float]) -> None:
        """Moves the bar, unless it was moved a moment ago."""
        now = time.monotonic()
        if self._bar.disable or now - self._shown < _REFRESH_SECONDS:
            return
        self._shown = now
        fraction = min(1.0, (step + 1) / self._steps_per_epoch)
        text = self._text(terms["total"], terms["nll"], terms["complexity"])
        self._bar.update(self._task, completed=epoch + fraction, terms=text)

    def note(self, text: str) -> None:
        """Prints a message above the bar."""
        if not self._bar.disable:
            self._bar.console.print(text)

    def epoch(self, record: EpochRecord) -> None:
        """Moves the bar to the end of the epoch."""
        if record.validation:
            error, nll = record.validation["error"], record.validation["nll"]
            self._validation = f" · validation error {error:.3g} nll {nll:.3g}"
        text = self._text(record.total, record.nll, record.complexity)
        self._bar.update(self._task, completed=record.epoch, terms=text)

    def _text(self, total: float, nll: float, complexity: float) -> str:
        # The most important terms come first, since a narrow terminal cuts off the end.
        return f"loss {total:.3g} · nll {nll:.3g}{self._validation} · complexity {complexity:,.0f}"


class LoggedDisplay:
    """Passes everything on to another display, and also writes epochs to TensorBoard."""

    def __init__(self, display: Display, writer: Any):
        self._writer = writer
        self.step = display.step
        self.note = display.note
        self._epoch = display.epoch

    def epoch(self, record: EpochRecord) -> None:
        """Shows the epoch and writes its record to TensorBoard."""
        self._epoch(record)
        for name in (
            "total",
            "nll",
            "complexity",
            "auxiliary",
            "beta",
            "learning_rate",
            "gradient_norm",
        ):
            self._writer.add_scalar(f"train/{name}", getattr(record, name), record.epoch)
        for name, value in record.validation.items():
            self._writer.add_scalar(f"validation/{name}", value, record.epoch)


@contextmanager
def make_display(
    progress: bool | Display, epochs: int, steps_per_epoch: int | None, log_dir: str | Path | None
) -> Generator[Display]:
    """Makes a display and closes it at the end; a display passed by the user is not closed."""
    writer = _tensorboard(log_dir) if log_dir is not None else None
    try:
        with _display(progress, epochs, steps_per_epoch) as display:
            yield display if writer is None else LoggedDisplay(display, writer)
    finally:
        if writer is not None:
            writer.close()


@contextmanager
def _display(
    progress: bool | Display, epochs: int, steps_per_epoch: int | None
) -> Generator[Display]:
    if not isinstance(progress, bool):
        yield progress
        return
    # Without ipywidgets, Rich warns in a notebook instead of showing its bar.
    if progress and Console().is_jupyter:
        yield NotebookLine(epochs, steps_per_epoch)
        return
    bar = Progress(
        TextColumn("epoch"),
        MofNCompleteColumn(),
        BarColumn(bar_width=12),
        TimeRemainingColumn(),
        # This column takes the remaining width, so a narrow terminal shortens it and no other.
        TextColumn(
            "{task.fields[terms]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
        ),
        expand=True,
        disable=not progress,
    )
    with bar:
        task = bar.add_task("fit", total=epochs, terms="")
        yield BarDisplay(bar, task, steps_per_epoch)


def _tensorboard(log_dir: str | Path) -> Any:
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "log_dir needs TensorBoard: pip install 'bayes-by-hypernet[studies]'."
        ) from error
    return SummaryWriter(str(log_dir))
