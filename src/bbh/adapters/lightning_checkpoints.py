"""What a ``LightningPosterior`` adds to Lightning's checkpoints, and how it checks them.

Lightning's files know neither what a run was made with nor whether they are whole.
"""

import hashlib
import logging
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from bbh.processes import Processes, gathered
from bbh.training.checkpoints import CheckpointError, check_settings
from bbh.training.random_numbers import random_state, restore_random_state
from bbh.training.settings import Settings

logger = logging.getLogger("bbh")

_RANDOM_STATE, _SETTINGS, _CHECKSUM = "bbh_random_state", "bbh_settings", "bbh_checksum"
# What is read again. Lightning and its callbacks may change the rest.
_PARTS = ("state_dict", "optimizer_states", "lr_schedulers", _RANDOM_STATE, _SETTINGS)


def complete(checkpoint: dict[str, Any], settings: Settings, processes: Processes) -> None:
    """Adds the states of every process's random generators, the settings, and a checksum."""
    checkpoint[_RANDOM_STATE] = gathered(processes, random_state(()))
    checkpoint[_SETTINGS] = settings
    checkpoint[_CHECKSUM] = _checksum_of(checkpoint)


def check(checkpoint: Mapping[str, Any], name: str) -> None:
    """Raises unless the checkpoint is what was written."""
    if any(part not in checkpoint for part in (_CHECKSUM, _RANDOM_STATE, _SETTINGS)):
        raise CheckpointError(f"{name} was not written by a LightningPosterior of this version.")
    if checkpoint[_CHECKSUM] != _checksum_of(checkpoint):
        raise CheckpointError(
            f"{name} was changed after it was written: its contents do not match their checksum."
        )


def check_made_with(checkpoint: Mapping[str, Any], name: str, now: Settings) -> None:
    """Raises if the checkpoint was made with other settings than those of now."""
    check_settings(name, {"settings": checkpoint[_SETTINGS]}, now)


def restore_random_numbers(checkpoint: Mapping[str, Any], name: str, processes: Processes) -> None:
    """Puts the random generators of every process back, if there are as many as there were."""
    states = checkpoint[_RANDOM_STATE]
    if len(states) == processes.world_size:
        restore_random_state(states[processes.global_rank], ())
    elif processes.global_rank == 0:
        logger.warning(
            "%s was written by %d processes, and there are %d now: random numbers do not go on "
            "where they were.",
            name,
            len(states),
            processes.world_size,
        )


def _checksum_of(checkpoint: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            plain = value.detach().cpu().contiguous().reshape(-1)
            add(f"{value.dtype} {list(value.shape)}")
            digest.update(plain.view(torch.uint8).numpy().data)
        elif isinstance(value, Mapping):
            known = cast(Mapping[Any, Any], value)
            digest.update(f"{len(known)} by name".encode())
            for key, part in known.items():
                add(repr(key))
                add(part)
        elif isinstance(value, list | tuple):
            parts = cast(list[Any], value)
            digest.update(f"{len(parts)} in a row".encode())
            for part in parts:
                add(part)
        elif value is None or isinstance(value, str | int | float):
            digest.update(repr(value).encode())
        else:  # may be anything: its class is what can be told
            digest.update(type(value).__name__.encode())

    for name in _PARTS:
        add(checkpoint.get(name))
    return digest.hexdigest()
