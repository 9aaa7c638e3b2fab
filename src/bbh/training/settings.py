"""The settings of a training run by name, which a checkpoint holds to be compared with later.

Only plain values are kept: numbers, words, and checksums of tensors. A function, or another object
that consists of code, is kept as the name of its class: two functions are not told apart.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, cast

import torch
from torch import Tensor

from bbh.batches import length_of
from bbh.network import describe_modules
from bbh.posterior import Posterior
from bbh.training.step import TrainingStep

Settings = dict[str, str | int | float | None]

# How an optimizer computes its update, which depends on the device, and not what it computes.
_IMPLEMENTATION = ("params", "fused", "foreach", "capturable", "differentiable")


def run_settings(
    step: TrainingStep,
    *,
    loader: object,
    beta: object,
    scheduler: Any,
    schedule_each_step: bool,
    own: Mapping[str, Any],
) -> Settings:
    """Everything that decides how training goes on, except what may change when it is resumed.

    The number of epochs, the validation data and the patience may change.

    Args:
        step: The training step, with its posterior and its optimizer as they were made.
        loader: The training loader.
        beta: The weight of the complexity, as ``fit`` was given it.
        scheduler: The schedule of the learning rate, as it was made.
        schedule_each_step: Whether the schedule advances with every step.
        own: Settings that the user wants to have compared too.
    """
    # What a loader does not tell is left out.
    order = {"batch_size": getattr(loader, "batch_size", None), "batches": length_of(loader)}
    everything = {
        "settings": own,
        **step.settings,
        "gradient_clip": step.gradient_clip,
        "processes": 1 if step.fabric is None else step.fabric.world_size,
        "precision": None if step.fabric is None else step.fabric.strategy.precision.precision,
        "scheduler": {"kind": type(scheduler).__name__, "each_step": schedule_each_step},
        "scheduler state": {} if scheduler is None else scheduler.state_dict(),
        "loader": {name: value for name, value in order.items() if value is not None},
    }
    return objective_settings(step.posterior, step.plain_optimizer, beta) | _described(
        "", everything
    )


def objective_settings(
    posterior: Posterior[Any], optimizer: Any, beta: object, **others: Any
) -> Settings:
    """What is trained, and how its weights are updated.

    Args:
        posterior: The posterior.
        optimizer: Its optimizer, as it was made.
        beta: The weight of the complexity, as it was given.
        others: More that decides how training goes on.
    """
    modules = describe_modules(posterior.network)
    first, *more = (
        {name: value for name, value in group.items() if name not in _IMPLEMENTATION}
        for group in optimizer.param_groups
    )
    everything = {
        "network": {"modules": len(modules), **modules},
        "method": posterior.recipe or type(posterior.weights).__name__,
        "prior": posterior.prior,
        "likelihood": posterior.likelihood,
        "beta": "the method's own" if beta is None else beta,
        "optimizer": {"kind": type(optimizer).__name__, "groups": 1 + len(more), **first},
        "optimizer group": dict(enumerate(more, 2)),
        **others,
    }
    return _described("", everything)


def differences(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """What differs among the settings that both have, as ``name=value, not value``.

    A name that only one of them has is no difference: versions of the library, of PyTorch or of the
    user's program may know different names.

    >>> differences({"temperature": 1.0, "new": 3}, {"temperature": 0.1, "old": 4})
    ['temperature=1.0, not 0.1']
    """
    return [
        f"{name.removeprefix('settings.')}={before[name]}, not {value}"
        for name, value in now.items()
        if name in before and before[name] != value
    ]


def _described(name: str, value: Any) -> Settings:
    """A value and its parts as plain values by name."""
    if _is_plain(value):
        return {name: _as_plain(value)}
    if isinstance(value, Tensor):
        return {name: float(value) if value.numel() == 1 else _checksum(value)}
    if dataclasses.is_dataclass(value):
        found: Settings = {name: type(value).__name__}
        fields = (one.name for one in dataclasses.fields(value) if one.init)
        parts: Mapping[Any, Any] = {field: getattr(value, field) for field in fields}
    elif isinstance(value, Mapping):
        found, parts = {}, cast(Mapping[Any, Any], value)
    elif isinstance(value, list | tuple):
        sequence = cast(list[Any], value)
        if all(map(_is_plain, sequence)):
            return {name: ", ".join(map(str, sequence))}
        found, parts = {}, dict(enumerate(sequence))
    else:
        return {name: type(value).__name__}
    for key, part in parts.items():
        found |= _described(f"{name}.{key}".strip("."), part)
    return found


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | Integral | Real)


def _as_plain(value: Any) -> str | int | float | None:
    """Exactly a string or number of Python: files are read without any other class."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    return int(value) if isinstance(value, Integral) else float(value)


def _checksum(value: Tensor) -> str:
    plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(plain.numpy().data).hexdigest()[:16]
