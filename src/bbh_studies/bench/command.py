"""The work of the command ``bbh bench``: it chooses settings and starts a benchmark."""

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bbh_studies.bench.cpu import bench_cpu
from bbh_studies.bench.estimators import FOLDER, CardSizes, bench_estimators
from bbh_studies.bench.gpu import Extent, bench_gpu
from bbh_studies.bench.large import TINY, bench_large
from bbh_studies.bench.problems import Sizes
from bbh_studies.bench.scaling import TINY_AXES
from bbh_studies.bench.settings import BENCHMARKS
from bbh_studies.settings.words import ConfigError, unknown

# Where a clone of the repository has its adapters.
PEERS = Path("benchmarks/peers")


def bench(
    where: str,
    console: Console,
    *,
    rounds: int | None = None,
    quick: bool = False,
    **chosen: Any,
) -> Path:
    """Runs a benchmark and returns the folder of its records.

    Args:
        where: cpu, gpu, large or estimators.
        console: For tables and progress.
        rounds: Turns of every training step; None takes the benchmark's default.
        quick: Use tiny sizes, to see whether everything works; the times then mean nothing.
        chosen: Further ``Settings``.
    """
    if where not in BENCHMARKS:
        raise unknown(f"bbh bench {where}", where, BENCHMARKS)
    settings = replace(BENCHMARKS[where], **chosen)
    if rounds is not None:
        settings = replace(settings, rounds=rounds)
    if settings.peers is not None and not settings.peers.is_dir():
        raise ConfigError(f"--peers {settings.peers}: there is no such folder.")
    extent, axes, card = Extent(), dict(Extent().axes), CardSizes()
    if quick:
        settings = replace(settings, rounds=1, predict_rounds=1, repeats=1, sizes=Sizes(20, 20, 5))
        axes = TINY_AXES
        extent = replace(extent, images=100, axes=tuple(axes.items()))
        card = CardSizes(vectors=3, vector=20, critic_steps=2, timed_weights=1000)
    with _quiet():
        if where == "estimators":
            bench_estimators(settings, console, card)
            return settings.out / FOLDER
        if where == "large":
            bench_large(settings, console, (TINY,) if quick else None)
        elif where == "cpu":
            bench_cpu(settings, console, axes=axes)
        else:
            bench_gpu(settings, console, extent=extent)
    return settings.out / f"bench-{where}"


@contextmanager
def _quiet() -> Generator[None]:
    """Silences warnings: old libraries and large generators give many that do not matter here."""
    logger = logging.getLogger("bbh")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
