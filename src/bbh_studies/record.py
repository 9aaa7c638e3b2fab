"""Records: what was run, on what, and the results. Tables and figures are made from records."""

import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from bbh.files import DamagedFileError, atomic_path, read_json, sha256, write_json
from bbh.version import __version__
from bbh_studies.run.run import FILE_NAME, Run

SCHEMA = 1
_PACKAGE = Path(__file__).parents[1]
# More memory than the driver context of one process takes: if others use more, the card is shared.
_CONTEXT_BYTES = 1.5e9
ARRAYS_NAME = "arrays.npz"


class RecordError(ValueError):
    """A file is not a record, or was written with another schema."""


@dataclass(frozen=True)
class Record:
    """The record of one run.

    Attributes:
        study: Which study, e.g. mnist.
        variant: Which row of the study's table: the method's name where methods are compared, or
            what is varied, e.g. ``sliced`` in mnist-generators.
        method: Which method.
        preset: Which preset its configuration started from.
        seed: Seed of weights, order of the data and draws.
        config: All settings that its method and problem have, by their flat names.
        metrics: Number by name. Errors are in per cent.
        curves: Lists of numbers by name, one number per size of attack; ``epsilon`` lists the
            sizes. ``bbh_studies.problems.images.attack`` names the curves. Empty in studies that
            attack nothing.
        history: One entry per epoch.
        data: Name and fingerprint of the data sets.
        hardware: Processor and accelerator that the run used.
        versions: Versions of the libraries.
        commit: Commit of the repository, if the run was started from one.
        dirty: Whether the package's sources had uncommitted changes.
        schema: Version of this format.
        arrays: SHA-256 of ``arrays.npz``; empty if there is no such file, or in older records.
    """

    study: str
    variant: str
    method: str
    preset: str
    seed: int
    config: dict[str, Any]
    metrics: dict[str, float]
    history: list[dict[str, Any]]
    data: dict[str, str]
    hardware: dict[str, Any] = field(default_factory=lambda: hardware())
    versions: dict[str, str] = field(default_factory=lambda: versions())
    commit: str | None = field(default_factory=lambda: _git("rev-parse", "HEAD"))
    dirty: bool = field(default_factory=lambda: bool(_git("status", "--porcelain", "--", ".")))
    schema: int = SCHEMA
    curves: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    arrays: str = ""

    @staticmethod
    def of(
        run: Run,
        *,
        metrics: dict[str, float],
        history: list[dict[str, Any]],
        data: dict[str, str],
        curves: dict[str, list[float]] | None = None,
    ) -> "Record":
        """The record of a run that was made by this process, with its hardware and versions."""
        return Record(
            study=run.study.name,
            variant=run.variant,
            method=run.config.method.word,
            preset=run.preset,
            seed=run.seed,
            config=run.config.flat,
            metrics=metrics,
            history=history,
            data=data,
            curves=curves or {},
        )

    def write(self, folder: Path, arrays: Mapping[str, np.ndarray] | None = None) -> Path:
        """Writes ``record.json`` into the folder, and the arrays for figures into ``arrays.npz``.

        Each file is written atomically and the record last, so a folder with a record holds a
        complete run.
        """
        path, record = folder / FILE_NAME, self
        if arrays is not None:
            with atomic_path(folder / ARRAYS_NAME) as temporary:
                with temporary.open("wb") as file:
                    np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]
                record = replace(self, arrays=sha256(temporary))
        write_json(path, asdict(record))
        return path

    @staticmethod
    def read(path: Path) -> "Record":
        """Reads a record, or says why it cannot."""
        try:
            content = read_json(path, newer="arrays")
        except (OSError, DamagedFileError) as error:
            raise RecordError(f"{error}, so it is no record of a run.") from error
        if (schema := content.get("schema")) != SCHEMA:
            raise RecordError(f"{path} has schema {schema}; this version reads {SCHEMA}.")
        _check_types(path, content)
        try:
            return Record(**content)
        except TypeError as error:
            raise RecordError(f"{path} lacks or adds fields: {error}.") from error


def _check_types(path: Path, content: Mapping[str, Any]) -> None:
    """Raises if a file holds other types than the fields say."""
    expected: dict[Callable[[Any], bool], tuple[str, ...]] = {
        _is_text: ("study", "variant", "method", "preset", "arrays"),
        _is_dictionary: ("config", "hardware"),
        lambda value: _is_dictionary(value, _is_text): ("data", "versions"),
        lambda value: _is_dictionary(value, _is_number): ("metrics",),
        lambda value: isinstance(value, bool): ("dirty",),
        lambda value: type(value) is int: ("seed",),
        lambda value: value is None or _is_text(value): ("commit",),
        lambda value: _is_list(value, _is_epoch): ("history",),
        _are_curves: ("curves",),
    }
    for is_good, names in expected.items():
        for name in names:
            if name in content and not is_good(content[name]):
                raise RecordError(f"{path} is no record of a run: unexpected content of {name}.")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    # Whole numbers of JSON have any size.
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def _is_list(value: Any, is_part: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(is_part, cast(list[Any], value)))


def _is_dictionary(value: Any, is_part: Callable[[Any], bool] = lambda _: True) -> bool:
    return isinstance(value, dict) and all(map(is_part, cast(dict[str, Any], value).values()))


def _is_epoch(value: Any) -> bool:
    """Whether it is an epoch of a history: numbers, and the metrics on validation data."""
    return _is_dictionary(value, lambda one: _is_number(one) or _is_dictionary(one, _is_number))


def _are_curves(value: Any) -> bool:
    """Whether curves are lists of numbers, all as long as that of the sizes; or none at all."""
    if not _is_dictionary(value, lambda one: _is_list(one, _is_number)):
        return False
    return not value or ("epsilon" in value and len({len(one) for one in value.values()}) == 1)


def hardware() -> dict[str, Any]:
    """Processor and accelerator of this machine."""
    found: dict[str, Any] = {"machine": platform.machine(), "cores": os.cpu_count()}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        if torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            others = total - free - torch.cuda.memory_reserved()
            # Times say little if other processes use the card as well.
            found["gpu_shared"] = others > _CONTEXT_BYTES
    return found


def versions() -> dict[str, str]:
    """Versions of the software that affects the results."""
    return {
        "bbh": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def _git(*arguments: str) -> str | None:
    """Output of git in the folder of the package; None if that is not a checkout."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=_PACKAGE,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
