"""Writes files of every kind to a disk that is full, as far as the process can tell."""

import json
import os
import random
import resource
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import bbh
from bbh.files import WriteError, write_json
from bbh.training import checkpoints
from faults.children import run
from faults.tally import Tally
from studies.report_records import make_record

REFUSED, WRITTEN = "refused, the old file kept", "small enough to be written"


def _writers(folder: Path) -> dict[str, Callable[[int], Any]]:
    """Ways to write a file of about this size."""
    numbers = torch.arange(10_000, dtype=torch.float32)
    return {
        "json": lambda size: write_json(folder / "file", {"long": "x" * size}),
        "checkpoint": lambda size: checkpoints.write(folder / "file", {"it": numbers[: size // 4]}),
        "posterior": lambda size: bbh.save(
            bbh.methods.maximum_a_posteriori(
                nn.Linear(max(1, size // 40), 10), bbh.likelihoods.Categorical()
            ),
            folder / "file",
        ),
        "program": lambda size: _program().save(folder / "file"),
        "arrays": lambda size: make_record().write(
            folder, {"long": np.random.default_rng(0).random(size // 8)}
        ),
    }


@cache
def _program() -> bbh.adapters.ExportedPosterior:
    """Some 15 KB, made once since that takes a second."""
    posterior = bbh.methods.maximum_a_posteriori(nn.Linear(20, 10), bbh.likelihoods.Categorical())
    return bbh.export(posterior, torch.zeros(2, 20))


def fill_disk(number: int, seed: int) -> Tally:
    """Lets the disk be full at a random byte of a file that replaces an earlier one."""
    tally = Tally("full disk", (REFUSED, WRITTEN))
    with tempfile.TemporaryDirectory() as name:
        results = Path(name) / "results"
        code = run(_write_many, number, seed, Path(name), results)
        for index, outcome in enumerate(json.loads(results.read_text()) if code == 0 else []):
            tally.add(outcome, f"seed {seed}, number {index}")
        if code != 0:
            tally.add("crashed or hung", f"seed {seed}")
    return tally


def _write_many(number: int, seed: int, folder: Path, results: Path) -> None:
    outcomes: list[str] = []
    for index in range(number):
        choose = random.Random(f"{seed} {index} disk")
        own = folder / str(index)
        own.mkdir()
        write = choose.choice(list(_writers(own).values()))
        size = choose.randint(1_000, 30_000)
        write(size)
        outcomes.append(_written(own, partial(write, size), choose.randrange(2 * size)))
    results.write_text(json.dumps(outcomes))


def _written(folder: Path, write: Callable[[], Any], most_bytes: int) -> str:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        write()
    except WriteError as error:
        outcome = REFUSED if "\n" not in str(error) else "refused in several lines"
    except BaseException as error:
        outcome = f"another error ({type(error).__name__})"
    else:
        outcome = WRITTEN
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    if set(os.listdir(folder)) != before.keys():
        return "left files behind"
    changed = [name for name in before if (folder / name).read_bytes() != before[name]]
    return "lost the old file" if outcome == REFUSED and changed else outcome
