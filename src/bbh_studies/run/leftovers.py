"""What a run stores besides its record: its posterior, and an inspection of it."""

import importlib
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bbh
from bbh.inspect.selection import PointEstimateError
from bbh.samples import Samples
from bbh_studies.record import FILE_NAME, Record
from bbh_studies.run.run import Run
from bbh_studies.settings.words import ConfigError
from bbh_studies.studies import find_study

POSTERIOR_NAME = "posterior.safetensors"
INSPECTION_NAME = "inspection"
# Test inputs on which functions are compared; an average over many more is the same.
_NUM_INPUTS = 1000


def leave_behind(
    run: Run, posterior: bbh.Posterior[Any], inputs: Tensor, samples: Samples | None = None
) -> None:
    """Stores and inspects a fitted posterior, as far as the run was asked to.

    Files of an earlier run in the same folder are deleted. The run's random numbers stay the same
    whether it is inspected or not.

    Args:
        run: Says whether to store and whether to inspect.
        posterior: The posterior that the run fitted.
        inputs: Inputs on which functions are compared.
        samples: Draws to inspect, if they carry batch-norm statistics of their own; None takes
            fresh draws.
    """
    kept, inspection = run.folder / POSTERIOR_NAME, run.folder / INSPECTION_NAME
    kept.unlink(missing_ok=True)
    shutil.rmtree(inspection, ignore_errors=True)
    if run.keep_posterior:
        bbh.save(posterior, kept)
    devices = [posterior.device] if posterior.device.type == "cuda" else []
    # A point estimate cannot be inspected. Where methods are compared, that is no error.
    with torch.random.fork_rng(devices), suppress(PointEstimateError):
        if run.inspect:
            bbh.inspect.look(posterior, inputs[:_NUM_INPUTS], samples=samples).save(inspection)


def open_posterior(
    path: Path, *, network: str | None = None, data: Path | None = None, functions: bool = True
) -> tuple[bbh.Posterior[Any], Tensor | None]:
    """A stored posterior, and the test inputs of its study.

    Args:
        path: Folder of a run that kept its posterior, or a file that ``bbh.save`` wrote.
        network: ``module:function`` that makes the network; None takes the network of the run's
            study.
        data: Folder with the data files, as in ``bbh run``.
        functions: Whether to return test inputs too; without a study there are none.
    """
    file = path / POSTERIOR_NAME if path.is_dir() else path
    if not file.exists():
        raise FileNotFoundError(
            f"there is no {file}: a run keeps its posterior with `bbh run … --keep-posterior`, or "
            "is looked at while it is there with `bbh run … --inspect`."
        )
    if network is not None:
        return bbh.load(file, _make_network(network)), None
    if not (file.parent / FILE_NAME).exists():
        raise ConfigError(
            f"{file} lies beside no record of a run, so its network is not known: pass "
            "--network module:function, or use bbh.load and bbh.inspect.look in Python."
        )
    record = Record.read(file.parent / FILE_NAME)
    config = find_study(record.study).restored(record.config)
    posterior = bbh.load(file, config.make_network())
    return posterior, config.problem.inputs(data)[:_NUM_INPUTS] if functions else None


def _make_network(where: str) -> nn.Module:
    module, _, function = where.partition(":")
    # Import from the current folder too, as `python -m` does: the user's code is likely there.
    sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"--network {where}: write module:function, a function without arguments that makes "
            f"the network ({error})."
        ) from error
    finally:
        sys.path.pop(0)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"--network {where}: it made a {type(made).__name__}, not a network.")
    return made
