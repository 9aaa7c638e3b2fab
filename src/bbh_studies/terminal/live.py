"""Progress of a whole study: which run, how far, and the time left for all of them."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from bbh.training.history import EpochRecord
from bbh_studies.run.run import Run
from bbh_studies.terminal.time_left import TimeLeft, duration

# Five updates a second are enough for a terminal, and one line a minute for a log file.
_REFRESH_SECONDS = 0.2
_LINE_SECONDS = 60.0


class StudyProgress:
    """Shows progress as two moving lines on a terminal, and as plain lines elsewhere.

    ``fit`` reports its steps and epochs to it.

    Args:
        runs: All runs of the command, in their order.
        console: Where to show it.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._runs = list(runs)
        self._each = [run.steps_per_epoch for run in runs]
        self._console = console
        self._clock = clock
        self._left = TimeLeft(
            [
                (run.variant, each * run.config.all_epochs)
                for run, each in zip(runs, self._each, strict=True)
            ]
        )
        self._index = -1
        self._begun = self._shown = 0.0
        # Time and number of steps at the first report of the current run: a resumed run does
        # not start at step zero, and the time to set a run up is not that of a step.
        self._first: tuple[float, int] | None = None
        self._done = 0
        self._bars = Progress(
            # A name that is too long for the terminal goes on in the next line.
            TextColumn("{task.description}", table_column=Column(overflow="fold")),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[state]}"),
            # Takes the width that the other columns leave: in a narrow terminal only it is cut.
            TextColumn(
                "{task.fields[terms]}",
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=console,
            expand=True,
            transient=True,
            disable=not console.is_terminal,
        )
        self._study_line, self._run_line = (
            self._bars.add_task("", total=total, visible=False, state="", terms="")
            for total in (len(self._runs), 1)
        )

    def __enter__(self) -> "StudyProgress":
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def begin(self) -> None:
        """Call this when the next run starts."""
        self._index += 1
        self._begun = self._shown = self._clock()
        self._first, self._done = None, 0
        self._refresh("", "starting")

    def end(self, text: str, *, trained: bool) -> None:
        """Call this when the current run is over; ``text`` says how it went."""
        seconds = self._clock() - self._begun
        steps = self._done - self._first[1] if trained and self._first else 0
        self._left.finished(seconds, steps)
        line = f"{self._where()}: {text}"
        left = self._left.seconds(0, None)
        if not self._console.is_terminal and left:
            line += f"; {duration(left)} left"
        self.note(line)

    def step(self, epoch: int, step: int, terms: dict[str, float]) -> None:
        """Called by ``fit`` after training steps."""
        self._done = epoch * self._each[self._index] + step + 1
        now = self._clock()
        self._first = self._first or (now, self._done)
        seconds = _REFRESH_SECONDS if self._console.is_terminal else _LINE_SECONDS
        if now - self._shown < seconds:
            return
        self._shown = now
        state = f"epoch {epoch + 1}/{self._runs[self._index].config.all_epochs}"
        text = (
            f"loss {terms['total']:.3g} · nll {terms['nll']:.3g} · "
            f"complexity {terms['complexity']:,.0f}"
        )
        self._refresh(text, state)

    def epoch(self, record: EpochRecord) -> None:
        """Called by ``fit`` after every epoch."""
        epochs = self._runs[self._index].config.all_epochs
        self._done = record.epoch * self._each[self._index]
        if record.epoch == epochs:
            self._refresh("", "measuring")

    def note(self, text: str) -> None:
        """Prints a line that stays on the screen."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _refresh(self, text: str, state: str) -> None:
        run = self._runs[self._index]
        left = self._time_left()
        if not self._console.is_terminal:
            if text:
                self.note(f"{self._where()}: {state}, {text}; {duration(left)} left")
            return
        total = max(1, self._each[self._index] * run.config.all_epochs)
        self._bars.update(
            self._study_line,
            description=f"{run.study.name}, run {self._index + 1}/{len(self._runs)}",
            completed=self._index + self._done / total,
            state="" if left is None else f"{duration(left)} left",
            visible=True,
        )
        self._bars.update(
            self._run_line,
            description=run.title,
            total=total,
            completed=self._done,
            state=state,
            terms=text,
            visible=True,
        )

    def _where(self) -> str:
        run = self._runs[self._index]
        return f"{run.study.name} {self._index + 1}/{len(self._runs)} {run.title}"

    def _time_left(self) -> float | None:
        when, done = self._first or (0.0, self._done)
        taken = self._done - done
        return self._left.seconds(self._done, (self._clock() - when) / taken if taken else None)
