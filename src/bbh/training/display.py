"""What a person sees of training: a progress bar, and TensorBoard if asked for."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

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

# Reading a loss stalls an accelerator, and eyes need no more than this per second.
_REFRESH_SECONDS = 0.2


@runtime_checkable
class Display(Protocol):
    """Shows steps as they come and epochs as they end."""

    def step(self, epoch: int, step: int, terms: dict[str, float]) -> None:
        """Called after training steps; ``epoch`` and ``step`` (in it) are counted from 0."""
        ...

    def epoch(self, record: EpochRecord) -> None:
        """Called after every epoch."""
        ...

    def note(self, text: str) -> None:
        """Something to say once."""
        ...


class BarDisplay:
    """A progress bar."""

    def __init__(self, bar: Progress, task: TaskID, steps_per_epoch: int | None):
        self._bar = bar
        self._task = task
        self._steps_per_epoch = steps_per_epoch or 1
        self._shown = 0.0
        self._validation = ""

    def step(self, epoch: int, step: int, terms: dict[str, float]) -> None:
        """Moves the bar."""
        now = time.monotonic()
        if self._bar.disable or now - self._shown < _REFRESH_SECONDS:
            return
        self._shown = now
        fraction = min(1.0, (step + 1) / self._steps_per_epoch)
        text = self._text(terms["total"], terms["nll"], terms["complexity"])
        self._bar.update(self._task, completed=epoch + fraction, terms=text)

    def note(self, text: str) -> None:
        """Something to say once."""
        if not self._bar.disable:
            self._bar.console.print(text)

    def epoch(self, record: EpochRecord) -> None:
        """Moves the bar to the epoch's end."""
        if record.validation:
            error, nll = record.validation["error"], record.validation["nll"]
            self._validation = f" · validation error {error:.3g} nll {nll:.3g}"
        text = self._text(record.total, record.nll, record.complexity)
        self._bar.update(self._task, completed=record.epoch, terms=text)

    def _text(self, total: float, nll: float, complexity: float) -> str:
        # What matters first: a narrow terminal cuts the end off.
        return f"loss {total:.3g} · nll {nll:.3g}{self._validation} · complexity {complexity:,.0f}"


class LoggedDisplay:
    """Another display, and TensorBoard."""

    def __init__(self, display: Display, writer: Any):
        self._writer = writer
        self.step = display.step
        self.note = display.note
        self._epoch = display.epoch

    def epoch(self, record: EpochRecord) -> None:
        """Shows the epoch and writes its numbers."""
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
    """A display that is closed at the end, whatever happens; one that was given stays open."""
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
    bar = Progress(
        TextColumn("epoch"),
        MofNCompleteColumn(),
        BarColumn(bar_width=12),
        TimeRemainingColumn(),
        # Takes the room the others leave: in a narrow terminal it is cut, not they.
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
