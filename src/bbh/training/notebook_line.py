"""How training is shown in a notebook: one line of text, which is written anew."""

import importlib
import time
from typing import Any

from bbh.training.history import EpochRecord

# Every update is a message to the browser.
_REFRESH_SECONDS = 0.5


class NotebookLine:
    """Shows training as a line of text below the cell, and needs no widgets.

    Plain text is also what a stored notebook shows, on every site.

    Args:
        epochs: The number of all epochs.
        steps_per_epoch: The number of steps of each, if it is known.
    """

    def __init__(self, epochs: int, steps_per_epoch: int | None):
        self._epochs = epochs
        self._steps = "" if steps_per_epoch is None else f" of {steps_per_epoch}"
        self._handle: Any = None
        self._shown = time.monotonic()

    def step(self, epoch: int, step: int, terms: dict[str, float]) -> None:
        """Writes the line anew, unless it was written a moment ago."""
        if time.monotonic() - self._shown >= _REFRESH_SECONDS:
            place = f"epoch {epoch + 1} of {self._epochs}, step {step + 1}{self._steps}"
            self._show(f"{place} · loss {terms['total']:.3g} · nll {terms['nll']:.3g}")

    def epoch(self, record: EpochRecord) -> None:
        """Writes the means of the epoch."""
        last = record.epoch == self._epochs
        if not last and time.monotonic() - self._shown < _REFRESH_SECONDS:
            return
        line = f"epoch {record.epoch} of {self._epochs}"
        line += f" · loss {record.total:.3g} · nll {record.nll:.3g}"
        if record.validation:
            error, nll = record.validation["error"], record.validation["nll"]
            line += f" · validation error {error:.3g} nll {nll:.3g}"
        self._show(f"{line} · complexity {record.complexity:,.0f}")

    def note(self, text: str) -> None:
        """Prints a message below the line."""
        print(text)

    def _show(self, line: str) -> None:
        self._shown = time.monotonic()
        if self._handle is None:
            # Only in a notebook, where IPython always is.
            display: Any = importlib.import_module("IPython.display")
            self._handle = display.display(_Text(line), display_id=True)
        else:
            self._handle.update(_Text(line))


class _Text:
    """Text that a notebook shows without quotation marks."""

    def __init__(self, text: str):
        self._text = text

    def __repr__(self) -> str:
        return self._text
