"""Kills of ``fit``, of writing its checkpoint, of training in two processes, and of studies.

Whatever is killed is started again, and must end bit for bit like a run that nothing interrupted.
"""

import dataclasses
import hashlib
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import bbh
from bbh_studies.arrays import read_arrays
from bbh_studies.cli import app, entry_point
from bbh_studies.record import Record
from faults.children import FileEvents, run
from faults.tally import Tally
from scenarios import mlp
from training.small import Categorical, dataset, fit, hypernet, without_seconds
from training.together import ended

SAME = "identical"
_EPOCHS = 12
_METHODS: tuple[Callable[[], Any], ...] = (
    hypernet,
    lambda: bbh.methods.bayes_by_backprop(mlp(), Categorical()),
    lambda: bbh.methods.deep_ensemble(mlp(), Categorical(), num_members=2),
    lambda: bbh.methods.mc_dropout(mlp(), Categorical()),
)


def fingerprint(value: Any) -> str:
    """Tells values apart bit for bit: tensors, arrays, numbers, in lists and dictionaries."""
    digest = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, torch.Tensor):
            part = part.detach().cpu().contiguous()
            add((str(part.dtype), list(part.shape)))
            digest.update(part.reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(part, np.ndarray):
            add(torch.from_numpy(part.copy()))
        elif isinstance(part, dict):
            for key in sorted(part, key=repr):
                digest.update(repr(key).encode())
                add(part[key])
        elif isinstance(part, list | tuple):
            digest.update(f"{type(part).__name__} {len(part)}".encode())
            for one in part:
                add(one)
        else:
            digest.update(f"{type(part).__name__} {part!r}".encode())

    add(value)
    return digest.hexdigest()


def train(folder: Path, method: int, last: int | None, most_bytes: int | None) -> None:
    """Trains or goes on training, and writes what came of it beside the checkpoint."""
    torch.set_num_threads(1)
    events = FileEvents(folder / "run", last, most_bytes)
    found = _trained(folder / "run" / "checkpoint", _METHODS[method])
    (folder / "result").write_text(json.dumps([found, events.number]))


def _trained(path: Path, make: Callable[[], Any], fabric: Any = None) -> str:
    torch.manual_seed(3)
    posterior = make()
    history = fit(
        posterior,
        DataLoader(dataset(), batch_size=4, shuffle=True),
        _EPOCHS,
        checkpoint=path,
        resume=True,
        beta=1.0,
        fabric=fabric,
    )
    return fingerprint([posterior.state_dict(), without_seconds(history), torch.rand(3)])


def kill_fit(number: int, seed: int, *, aimed: bool) -> Tally:
    """Kills ``fit`` at random moments, or at operations on its checkpoint if ``aimed``."""
    tally = Tally("kills aimed at checkpoints" if aimed else "kills of fit", (SAME,))
    whole: dict[int, tuple[str, int, float]] = {}
    for index in range(number):
        choose = random.Random(f"{seed} {index} {aimed}")
        method = index % len(_METHODS)
        if method not in whole:
            whole[method] = _uninterrupted(method)
        expected, events, seconds = whole[method]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for _ in range(choose.randint(1, 2)):
                if aimed:
                    most = choose.randrange(20_000) if choose.random() < 0.4 else None
                    run(train, folder, method, choose.randint(1, events), most)
                else:
                    after = choose.uniform(0, seconds)
                    run(train, folder, method, None, None, kill_after=after)
            code = run(train, folder, method, None, None)
            tally.add(_outcome(folder, code, expected), f"seed {seed}, number {index}")
    return tally


def _uninterrupted(method: int) -> tuple[str, int, float]:
    """What comes of training, the number of operations on files, and the seconds it took."""
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        assert run(train, Path(name), method, None, None) == 0
        seconds = time.perf_counter() - start
        expected, events = json.loads((Path(name) / "result").read_text())
        return expected, events, seconds


def _outcome(folder: Path, code: int | None, expected: str) -> str:
    if code != 0:
        return "hung" if code is None else f"could not go on (exit code {code})"
    if json.loads((folder / "result").read_text())[0] != expected:
        return "different"
    left = os.listdir(folder / "run")
    return SAME if left == ["checkpoint"] else "left files behind"


def train_together(
    fabric: Any, folder: Path, rank: int | None, last: int | None
) -> tuple[str, int]:
    """Trains in several processes; the one with this rank is killed."""
    own = fabric.global_rank == rank
    events = FileEvents(folder, last if own else None)
    return _trained(folder / "checkpoint", hypernet, fabric), events.number


def kill_processes(number: int, seed: int) -> Tally:
    """Kills one of two processes that train together, at an operation on files."""
    tally = Tally("kills of two processes", (SAME,))
    with tempfile.TemporaryDirectory() as name:
        whole = [one.result for one in ended(train_together, Path(name), None, None)]
    expected = [one[0] for one in whole]
    for index in range(number):
        choose = random.Random(f"{seed} {index} processes")
        with tempfile.TemporaryDirectory() as name:
            # Only the first process writes; the other one touches files when it starts.
            last = choose.randint(1, whole[0][1])
            killed = ended(train_together, Path(name), 0, last)
            again = ended(train_together, Path(name), None, None)
        outcome = SAME if [one.result and one.result[0] for one in again] == expected else "differ"
        if any(one.code is None for one in (*killed, *again)):
            outcome = "hung"
        tally.add(outcome, f"seed {seed}, number {index}")
    return tally


def study(out: Path) -> None:
    """Runs, or goes on with, a small study."""
    torch.set_num_threads(1)
    os.environ["TORCH_COMPILE_DISABLE"] = "1"
    words = ["run", "digits", "--method", "bbb", "--seed", "3", "--epochs", "4", "--resume"]
    words += ["--device", "cpu", "--set", "prediction_samples=3", "--out", str(out)]
    entry_point(lambda: app(words))


def kill_studies(number: int, seed: int) -> Tally:
    """Kills ``bbh run`` at random moments."""
    tally = Tally("kills of studies", (SAME,))
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        assert run(study, Path(name)) == 0
        seconds = time.perf_counter() - start
        expected = _recorded(Path(name))
    for index in range(number):
        choose = random.Random(f"{seed} {index} study")
        with tempfile.TemporaryDirectory() as name:
            run(study, Path(name), kill_after=choose.uniform(0, seconds))
            code = run(study, Path(name))
            outcome = "hung" if code is None else f"could not go on (exit code {code})"
            if code == 0:
                outcome = SAME if _recorded(Path(name)) == expected else "different"
            tally.add(outcome, f"seed {seed}, number {index}")
    return tally


def _recorded(out: Path) -> tuple[str, list[str]]:
    """What a study recorded but for its times and its memory, and the names of its files."""
    folder = out / "digits" / "corrected" / "bbb-3"
    record = Record.read(folder / "record.json")
    arrays = read_arrays(folder, record.arrays)
    # Somebody may commit to the repository meanwhile.
    record = dataclasses.replace(record, arrays="", commit=None, dirty=False)
    content = dataclasses.asdict(record)
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*"))
    return fingerprint([_timeless(content), arrays]), files


def _timeless(content: Any) -> Any:
    if isinstance(content, dict):
        kept = (key for key in content if "second" not in key and "memory" not in key)
        return {key: _timeless(content[key]) for key in kept}
    return [_timeless(one) for one in content] if isinstance(content, list) else content
