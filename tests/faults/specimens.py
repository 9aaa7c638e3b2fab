"""A file of every kind that the library reads, how it is read, and how it is damaged."""

import dataclasses
import gzip
import hashlib
import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch.utils.data import DataLoader

import bbh
from bbh import files
from bbh.storage import files as storage
from bbh.storage.files import StorageError
from bbh.training import checkpoints
from bbh.training.checkpoints import CheckpointError
from bbh_studies.arrays import read_arrays
from bbh_studies.datasets import DataError, cifar10
from bbh_studies.datasets.cifar10 import CIFAR10
from bbh_studies.datasets.idx import read_idx
from bbh_studies.record import Record, RecordError
from scenarios import mlp
from studies.report_records import make_record
from studies.tiny_cifar import PER_FILE, write_binary, write_python
from training.small import dataset, fit, hypernet

_IDX_SHAPE = (6, 5, 4)
_IDX = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in _IDX_SHAPE) + bytes(range(120))
_ARRAYS = {"entropy": np.linspace(0, 1, 50), "correct": np.arange(50) % 2 == 0}


class Specimen(NamedTuple):
    """A kind of file.

    Attributes:
        make: Writes a whole file below a folder and returns its path.
        read: Reads the file at a path; what it returns is compared bit for bit.
        error: The only error that reading may end in; it names the file.
        digest: Whether a checksum tells that the file was changed.
        sign: Puts a fitting checksum on a changed file, as somebody would who wants it to be read.
    """

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    error: type[Exception]
    digest: bool = True
    sign: Callable[[Path], None] | None = None


def _posterior(folder: Path) -> Path:
    torch.manual_seed(0)
    bbh.save(hypernet(), folder / "posterior")
    return folder / "posterior"


def _read_posterior(path: Path) -> Any:
    posterior = bbh.load(path, mlp())
    return [posterior.state_dict(), repr(posterior.prior), repr(posterior.likelihood)]


def _sign_posterior(path: Path) -> None:
    with storage.safe_open(path, framework="pt") as file:
        description = json.loads(file.metadata()["bbh"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    description.pop("digest", None)
    description["digest"] = storage._digest(description, tensors)
    save_file(tensors, path, metadata={"bbh": json.dumps(description)})


def _checkpoint(folder: Path) -> Path:
    _train(folder / "checkpoint", 1)
    return folder / "checkpoint"


def _train(path: Path, epochs: int) -> Any:
    torch.manual_seed(0)
    posterior = bbh.methods.bayes_by_backprop(mlp(), bbh.likelihoods.Categorical())
    loader = DataLoader(dataset(), batch_size=12, shuffle=True)
    fit(posterior, loader, epochs, checkpoint=path, resume=True, beta=1.0, compare=False)
    return posterior.state_dict()


def _record(folder: Path) -> Path:
    return make_record("map", metrics={"error": 1.5, "nll": 0.25}).write(folder, _ARRAYS)


def _sign_record(path: Path) -> None:
    content = json.loads(path.read_text())
    content.pop("sha256", None)
    files.write_json(path, content)


def _arrays(folder: Path) -> Path:
    return _record(folder).with_name("arrays.npz")


def _read_known_arrays(path: Path) -> Any:
    return read_arrays(path.parent, Record.read(path.with_name("record.json")).arrays)


def _idx(folder: Path) -> Path:
    (folder / "images-idx3-ubyte").write_bytes(_IDX)
    return folder / "images-idx3-ubyte"


def _packed_idx(folder: Path) -> Path:
    (folder / "images-idx3-ubyte.gz").write_bytes(gzip.compress(_IDX, mtime=0))
    return folder / "images-idx3-ubyte.gz"


def _read_idx(path: Path) -> Any:
    return read_idx(path, _IDX_SHAPE, hashlib.sha256(_IDX).hexdigest())


def _read_cifar(path: Path) -> Any:
    cifar10.IMAGES_PER_FILE = PER_FILE  # in a process of its own
    data = CIFAR10.read(path.parents[1])
    return [data.train_images, data.train_labels, data.test_images, data.test_labels]


def _read_record(path: Path) -> Any:
    return dataclasses.asdict(Record.read(path))


SPECIMENS = {
    "posterior": Specimen(_posterior, _read_posterior, StorageError),
    "checkpoint": Specimen(_checkpoint, checkpoints.read, CheckpointError),
    "record": Specimen(_record, _read_record, RecordError),
    "arrays": Specimen(_arrays, _read_known_arrays, RecordError),
    "idx": Specimen(_idx, _read_idx, DataError),
    "idx, packed": Specimen(_packed_idx, _read_idx, DataError),
    # No checksum tells in what follows. Copies of CIFAR-10 may have been recoded.
    "CIFAR, binary": Specimen(
        lambda folder: write_binary(folder) / "data_batch_1.bin", _read_cifar, DataError, False
    ),
    "CIFAR, pickled": Specimen(
        lambda folder: write_python(folder) / "data_batch_1", _read_cifar, DataError, False
    ),
    "arrays of an old record": Specimen(
        _arrays, lambda path: read_arrays(path.parent), RecordError, False
    ),
    "posterior, signed anew": Specimen(
        _posterior, _read_posterior, StorageError, False, _sign_posterior
    ),
    "record, signed anew": Specimen(_record, _read_record, RecordError, False, _sign_record),
    # Resumed from, not merely read: its parts go to the network, the optimiser, the loader.
    "checkpoint, signed anew": Specimen(
        _checkpoint, lambda path: _train(path, 1), CheckpointError, False, files.seal
    ),
}


class _Exploit:
    """Unpickled, it runs a command."""

    def __reduce__(self) -> Any:
        return os.system, ("exit 7",)


def damaged(whole: bytes, choose: random.Random) -> bytes:
    """The content with a few bits, or a part, or all of it changed."""
    changed = bytearray(whole)
    first, last = sorted(choose.randrange(len(whole) + 1) for _ in range(2))
    kind = choose.randrange(20)
    if kind < 10:
        _flip(changed, choose, 1)
    elif kind < 12:
        _flip(changed, choose, choose.randint(2, 40))
    elif kind == 12:
        del changed[first:]
    elif kind == 13:
        changed += choose.randbytes(choose.randint(1, 300))
    elif kind == 14:
        del changed[first:last]
    elif kind == 15:
        changed[first:last] = bytes(last - first)
    elif kind == 16:
        changed[first:last] = choose.randbytes(min(last - first, 500))
    elif kind == 17:
        changed[first:first] = whole[first:last]
    elif kind == 18:
        changed = bytearray(pickle.dumps({"data": _Exploit(), "labels": _Exploit()}, 2))
    else:
        changed = bytearray(choose.randbytes(choose.randrange(2000)))
    return bytes(changed)


def _flip(content: bytearray, choose: random.Random, number: int) -> None:
    for _ in range(number):
        content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
