"""Settings of a benchmark: how often it measures and how much it computes."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from bbh_studies.bench.problems import Sizes


@dataclass(frozen=True)
class Settings:
    """Settings of one run of a benchmark.

    Args:
        rounds: Turns of every training step.
        predict_rounds: Turns of every prediction.
        repeats: Steps in a row that make one turn.
        sizes: How much is computed per call.
        seed: Seed of weights, draws and orders.
        scaling: Whether to measure how cost grows.
        peers: Folder with adapters of other libraries.
        only: Names of contenders and adapters; empty for all.
        out: Folder below which records are written.
    """

    rounds: int = 15
    predict_rounds: int = 5
    repeats: int = 5
    sizes: Sizes = field(default_factory=Sizes)
    seed: int = 0
    scaling: bool = True
    peers: Path | None = None
    only: tuple[str, ...] = ()
    out: Path = Path("runs/bench")

    def config(self, device: torch.device) -> dict[str, Any]:
        """The settings that affect the results, for records."""
        kept = asdict(self)
        for name in ("out", "peers", "only"):
            del kept[name]
        return kept | {"device": device.type, "threads": torch.get_num_threads()}


# The benchmarks by the names that the command line gives them. A step on a GPU is short: one turn
# has many steps, and few turns are enough for a minute.
BENCHMARKS = {
    "cpu": Settings(),
    "gpu": Settings(rounds=10, predict_rounds=5, repeats=20, sizes=Sizes(images=1000)),
    "large": Settings(rounds=7, repeats=3),
    "estimators": Settings(rounds=7, repeats=3),
}
