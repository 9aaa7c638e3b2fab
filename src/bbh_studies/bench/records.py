"""Records of what was measured, and tables for a terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from bbh_studies.bench.compare import Row
from bbh_studies.bench.settings import Settings
from bbh_studies.bench.timing import Timing
from bbh_studies.record import Record

# Presets of the records: each names a part of the benchmark.
SIDE_BY_SIDE, SCALING, HEADLINE, FLOOR = "side-by-side", "scaling", "headline", "floor"


class Writer:
    """Writes records of one run of a benchmark.

    Args:
        study: Name of the benchmark, which records have as their study.
        settings: Settings of the benchmark.
        device: The device that is measured.
    """

    def __init__(self, study: str, settings: Settings, device: torch.device):
        self.study = study
        self.settings = settings
        self.device = device
        self.records: list[Record] = []

    def write(
        self,
        preset: str,
        variant: str,
        method: str,
        metrics: Mapping[str, float],
        **config: Any,
    ) -> Path:
        """Writes one record, in a folder of its own."""
        record = Record(
            study=self.study,
            variant=variant,
            method=method,
            preset=preset,
            seed=self.settings.seed,
            config=self.settings.config(self.device) | config,
            metrics=dict(metrics),
            history=[],
            data={"inputs": "random"},
        )
        self.records.append(record)
        return record.write(self.settings.out / self.study / preset / variant)

    def write_rows(self, preset: str, problem: str, rows: Sequence[Row]) -> None:
        """Writes one record per contender."""
        for row in rows:
            contender = row.contender
            self.write(
                preset,
                f"{problem}-{contender.name}",
                contender.method,
                row.metrics(),
                problem=problem,
                library=contender.library,
                predict_batch=row.batch_size,
                note=contender.note,
                failures=row.failures,
            )


def rows_table(title: str, rows: Sequence[Row], *, by_method: bool = True) -> Table:
    """One row per contender: times, parameters, memory. This library's rows are bold.

    Args:
        title: Title above the table.
        rows: The measurements.
        by_method: Put contenders of a method together, the fastest step first.
    """
    table = Table(title=f"{title}\nms: median ± half the interquartile range; MB beyond parameters")
    table.add_column("contender", no_wrap=True)
    for column in ("step ms", "predict ms", "params", "train MB", "pred. MB"):
        table.add_column(column, justify="right", min_width=5)
    methods = list(dict.fromkeys(row.contender.method for row in rows)) if by_method else [None]
    for method in methods:
        some = [row for row in rows if method is None or row.contender.method == method]
        for row in sorted(some, key=_speed) if by_method else some:
            contender = row.contender
            table.add_row(
                contender.name if contender.is_peer else f"[bold]{contender.name}[/bold]",
                _cell(row.step, row.failures.get("step")),
                _cell(row.predict, row.failures.get("predict")),
                _short(contender.parameters),
                _megabytes(row.training_bytes),
                _megabytes(row.predict_bytes),
            )
        table.add_section()
    return table


def headline_table(title: str, metrics: Mapping[str, float]) -> Table:
    """A table of the names and values of headline numbers."""
    table = Table(title=title)
    table.add_column("metric", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    for name, value in metrics.items():
        table.add_row(name, f"{value:.4g}")
    return table


def _speed(row: Row) -> float:
    return float("inf") if row.step is None else row.step.median


def _cell(timing: Timing | None, failure: str | None) -> str:
    if timing is None:
        return "" if failure is None else "failed"
    lower, upper = timing.quartiles
    return f"{_number(1e3 * timing.median)} ±{_number(500 * (upper - lower))}"


def _number(value: float) -> str:
    """Three digits, and no powers of ten.

    >>> _number(4671.2), _number(45.52), _number(0.0123)
    ('4671', '45.5', '0.012')
    """
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 1 else f"{value:.3f}".rstrip("0").rstrip(".")


def _short(number: int) -> str:
    return f"{number / 1e6:.1f}M" if number >= 1e6 else f"{number / 1e3:.0f}k"


def _megabytes(number: int | None) -> str:
    return "" if number is None else f"{number / 1e6:.1f}"
