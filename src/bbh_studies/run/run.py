"""One run of a study: what to train, from which seed, and where its record goes."""

from dataclasses import dataclass
from pathlib import Path

from bbh_studies.problems.study import Study
from bbh_studies.settings.config import Config

# The record, in the folder of its run.
FILE_NAME = "record.json"


@dataclass(frozen=True)
class Run:
    """One run of a study: a row of its table with one seed.

    Attributes:
        study: The study.
        variant: Row of its table; see ``Record``.
        preset: Which preset the configuration started from.
        seed: Seed of weights, order of the data and draws.
        config: All settings.
        folder: Where record, arrays and checkpoint go.
        keep_posterior: Whether to store the posterior in that folder as well.
        inspect: Whether to inspect the posterior and store numbers and figures in that folder.
    """

    study: Study
    variant: str
    preset: str
    seed: int
    config: Config
    folder: Path
    keep_posterior: bool = False
    inspect: bool = False

    @property
    def checkpoint(self) -> Path:
        """The checkpoint from which an interrupted run goes on."""
        return self.folder / "checkpoint.pt"

    @property
    def warm_start(self) -> Path:
        """The checkpoint of the warm start, from which an interrupted run goes on."""
        return self.folder / "warm-start.pt"

    @property
    def title(self) -> str:
        """The name of the run in messages to people."""
        part = "".join(f"{word.partition('=')[2]}: " for word in self.part)
        return f"{part}{self.study.row_titles[self.variant]}, seed {self.seed}"

    @property
    def part(self) -> tuple[str, ...]:
        """The part of the study that it belongs to, as ``--set`` takes it; empty without parts."""
        return self.study.part_of(self.config.flat)

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in a pass over the training data; 0 for a reference, which is sampled."""
        if not self.config.method.is_trained:
            return 0
        return self.config.problem.count_steps(self.config.training.batch_size)

    @property
    def is_finished(self) -> bool:
        """Whether there is a record of it."""
        return (self.folder / FILE_NAME).exists()

    @property
    def is_interrupted(self) -> bool:
        """Whether it can go on from a checkpoint."""
        return not self.is_finished and (self.checkpoint.exists() or self.warm_start.exists())

    def forget(self) -> None:
        """Deletes the checkpoints."""
        for path in (self.checkpoint, self.warm_start):
            path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Deletes checkpoints and record, so that nothing looks finished."""
        self.forget()
        (self.folder / FILE_NAME).unlink(missing_ok=True)
