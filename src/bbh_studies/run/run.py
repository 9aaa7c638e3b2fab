"""One run of a study: what to train, from which seed, and where its record goes."""

from dataclasses import dataclass
from pathlib import Path

from bbh_studies.problems.study import Study
from bbh_studies.settings.config import Config


@dataclass(frozen=True)
class Run:
    """One posterior of a study's table.

    Attributes:
        study: The study.
        variant: Row of its table; see ``Record``.
        preset: Which preset the configuration started from.
        seed: Seed of weights, order of the data and draws.
        config: All settings.
        folder: Where record, arrays and checkpoint go.
        keep_posterior: Leave the posterior there as well.
        inspect: Look at the posterior, and leave numbers and figures there.
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
        """Where an interrupted run goes on from."""
        return self.folder / "checkpoint.pt"

    @property
    def warm_start(self) -> Path:
        """Where an interrupted training of the weights it starts around goes on from."""
        return self.folder / "warm-start.pt"

    @property
    def title(self) -> str:
        """A name for people."""
        return f"{self.study.row_titles[self.variant]}, seed {self.seed}"

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in a pass over the training data; a reference takes none."""
        if not self.config.method.is_trained:
            return 0
        return self.config.problem.count_steps(self.config.training.batch_size)

    def forget(self) -> None:
        """Deletes the checkpoints."""
        for path in (self.checkpoint, self.warm_start):
            path.unlink(missing_ok=True)
