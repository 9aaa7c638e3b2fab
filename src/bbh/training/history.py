"""The history of a training run: one record for each epoch."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, overload

from bbh.training.comparison import Comparison


@dataclass(frozen=True)
class EpochRecord:
    """Means over one epoch's steps and over all processes, and the state at its end.

    Attributes:
        epoch: Number of the epoch, counted from 1.
        step: The number of training steps so far.
        total: The objective.
        nll: Mean negative log likelihood per datum.
        complexity: The complexity in nats.
        auxiliary: Loss of helper networks.
        beta: Weight of the complexity in the last step.
        learning_rate: Learning rate of the first parameter group.
        gradient_norm: Norm of the gradient before clipping.
        seconds: Wall time of the epoch, validation included.
        validation: Metrics on the validation data; empty without validation data.
    """

    epoch: int
    step: int
    total: float
    nll: float
    complexity: float
    auxiliary: float
    beta: float
    learning_rate: float
    gradient_norm: float
    seconds: float
    validation: dict[str, float] = field(default_factory=dict[str, float])


class History(Sequence[EpochRecord]):
    """The records of one training run.

    Attributes:
        best_epoch: The epoch whose state was restored at the end, if any.
        comparison: How the posterior compares with a constant prediction and with the network it
            started from; None if ``fit`` was told not to compare or trained no epoch.
        temperature: The factor on the complexity that training had.
    """

    def __init__(
        self,
        records: Sequence[EpochRecord] = (),
        best_epoch: int | None = None,
        temperature: float = 1.0,
    ):
        self.records = list(records)
        self.best_epoch = best_epoch
        self.temperature = temperature
        self.comparison: Comparison | None = None

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> EpochRecord: ...

    @overload
    def __getitem__(self, index: slice) -> list[EpochRecord]: ...

    def __getitem__(self, index: int | slice) -> EpochRecord | list[EpochRecord]:
        return self.records[index]

    def __iter__(self) -> Iterator[EpochRecord]:
        return iter(self.records)

    def __repr__(self) -> str:
        last = f", nll={self.records[-1].nll:.4g}" if self.records else ""
        cold = f", temperature={self.temperature:g}" if self.temperature != 1 else ""
        return f"History({len(self)} epochs, best_epoch={self.best_epoch}{last}{cold})"

    def to_dicts(self) -> list[dict[str, Any]]:
        """The records as plain dictionaries, ready for JSON."""
        return [asdict(record) for record in self.records]

    def save(self, path: str | Path) -> None:
        """Writes the records and the comparison as JSON."""
        content = {
            "best_epoch": self.best_epoch,
            "temperature": self.temperature,
            "comparison": self.comparison and asdict(self.comparison),
            "epochs": self.to_dicts(),
        }
        Path(path).write_text(json.dumps(content, indent=1) + "\n")
