"""Checkpoints: everything that is needed to continue training, written atomically."""

import logging
from pathlib import Path
from typing import Any

import torch

from bbh.files import DamagedFileError, atomic_path, check_seal, seal
from bbh.training.settings import Settings, differences

logger = logging.getLogger("bbh")

FORMAT = 3


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or belongs to another training run."""


def write(path: Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint; an interruption leaves the earlier one intact."""
    with atomic_path(path) as temporary:
        # Through a file of Python, which tells why it cannot be written.
        with temporary.open("wb") as file:
            torch.save({"format": FORMAT, **state}, file)
        seal(temporary)


def read(path: Path) -> dict[str, Any]:
    """Reads a checkpoint without executing anything in it, after a check of its checksum."""
    return _loaded(path)


def read_settings(path: Path) -> Settings:
    """The settings that a checkpoint was made with, read without its tensors."""
    return _loaded(path, mmap=True)["settings"]


def _loaded(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    try:
        check_seal(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except DamagedFileError as error:
        raise CheckpointError(
            f"{error}, or it is no checkpoint of this version of bbh. Delete it to start anew."
        ) from error
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint ({first_line(error)}). Delete it to start anew."
        ) from error
    known = isinstance(state, dict) and isinstance(state.get("settings"), dict)
    if not known or state.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is not a checkpoint of this version of bbh (format {FORMAT})."
        )
    return state


def first_line(error: Exception) -> str:
    """What went wrong: PyTorch adds paragraphs of advice, which would run code from the file."""
    return str(error).partition("\n")[0] or type(error).__name__


def check_settings(path: Path | str, state: dict[str, Any], now: Settings) -> None:
    """Raises if a checkpoint was made with other settings than those of now."""
    if found := differences(state["settings"], now):
        shown = "; ".join(found[:3]) + ("; …" if len(found) > 3 else "")
        raise CheckpointError(
            f"{path} was made with {shown}. Go on with what it was made with, or start anew with "
            "another file."
        )


def warn_about_workers(loader: object) -> None:
    """Warns if a loader draws random numbers where no checkpoint can reach them."""
    if getattr(loader, "num_workers", 0) and getattr(loader, "persistent_workers", False):
        logger.warning(
            "the loader keeps its workers from epoch to epoch (persistent_workers=True), and they "
            "keep random numbers that no checkpoint holds: if examples are changed at random, a "
            "resumed run differs from an uninterrupted one. With persistent_workers=False it is "
            "the same bit for bit."
        )


def detached_copy(state: dict[str, Any]) -> dict[str, Any]:
    """A copy of a state dictionary on the CPU, which later training steps do not change."""
    return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}
