"""Options of ``fit`` that belong together: validation, and checkpoints."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bbh import checks


@dataclass(frozen=True)
class Validation:
    """Data on which the posterior is evaluated after every epoch.

    Args:
        loader: Batches of ``(inputs, targets)``.
        num_samples: The number of weight draws for the predictions.
        patience: Stop after this many epochs without a better NLL on these data, and restore the
            best epoch's state at the end. None trains to the end and keeps the last state.
    """

    loader: Iterable[Any]
    num_samples: int = 10
    patience: int | None = None

    def __post_init__(self):
        checks.whole("Validation(num_samples)", self.num_samples, 1, "draw at least one")
        if self.patience is not None:
            checks.whole("Validation(patience)", self.patience, 1, "wait at least one epoch")


@dataclass(frozen=True)
class Checkpoint:
    """A file from which interrupted training can continue.

    Ctrl-C and SIGTERM wait until the epoch is finished and its checkpoint written, unless the
    program handles these signals itself or does not train in its main thread. A second signal stops
    at once. With several processes, a signal to one stops all after the same epoch.

    Args:
        path: The file, which is written after every epoch. All of several processes must see it.
        resume: Whether to continue from the file if it exists. On a CPU the result equals that of
            an uninterrupted run bit for bit, if both have the same number of epochs: schedules that
            a method chooses itself depend on it. A file that was made with other settings is an
            error, and so is another number of processes; only the number of epochs, the validation
            data and the patience may change. If False, an existing file is an error.
        seconds: The least time between two writes, for large posteriors whose state takes longer to
            write than an epoch takes to train.
        settings: Plain values by name that a resumed run must have in common with the interrupted
            one, besides all that ``fit`` knows by itself: the seed, say, or the name of the data.
    """

    path: str | Path
    resume: bool = False
    seconds: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self):
        checks.number("Checkpoint(seconds)", self.seconds)
