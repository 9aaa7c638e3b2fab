"""One run of a study: what to train, from which seed, and where its record goes."""

from dataclasses import dataclass
from pathlib import Path

from bbh_studies.config import Config


@dataclass(frozen=True)
class Run:
    """A cell of a study's table.

    Attributes:
        study: Name of the study.
        variant: Row of its table; see ``Record``.
        preset: Which preset the configuration started from.
        seed: Of weights, order and draws.
        config: All settings.
        folder: Where record, arrays and checkpoint go.
        keep_posterior: Leave the posterior there as well.
        inspect: Look at the posterior, and leave numbers and figures there.
    """

    study: str
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
        """The same for the weights it starts around."""
        return self.folder / "warm-start.pt"

    def forget(self) -> None:
        """Leaves nothing to go on from."""
        for path in (self.checkpoint, self.warm_start):
            path.unlink(missing_ok=True)
