"""Files: a file is what was written, or an error says that it is not."""

import gc
import hashlib
import json
import os
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

import bbh
from bbh.files import (
    DamagedFileError,
    WriteError,
    atomic_path,
    check_seal,
    read_json,
    remove_leftovers,
    seal,
    sha256,
    write_json,
)
from bbh.training import checkpoints

CONTENT = {"name": "é", "number": 0.1, "list": [1, 2], "nothing": None, "nan": float("inf")}


def flipped(whole: bytes, position: int) -> bytes:
    damaged = bytearray(whole)
    damaged[position] ^= 1 << position % 8
    return bytes(damaged)


def test_checksum_of_a_file_and_of_its_beginning(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 5000)  # more than one piece
    assert sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert sha256(path, 300) == hashlib.sha256(path.read_bytes()[:300]).hexdigest()


def test_no_damage_of_a_sealed_file_goes_unnoticed(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    seal(path)
    whole = path.read_bytes()
    check_seal(path)
    others = [flipped(whole, position) for position in range(len(whole))]
    others += [whole[:length] for length in range(len(whole))]
    others += [whole + b"\n", b"content"]
    for other in others:
        path.write_bytes(other)
        with pytest.raises(DamagedFileError, match="truncated or damaged"):
            check_seal(path)


def test_no_damage_of_json_goes_unnoticed(tmp_path):
    path = tmp_path / "file.json"
    write_json(path, CONTENT)
    whole = path.read_bytes()
    assert read_json(path) == CONTENT
    for position in range(len(whole)):
        path.write_bytes(flipped(whole, position))
        try:
            found = read_json(path)
        except DamagedFileError as error:
            assert str(path) in str(error)  # noqa: PT017 - harmless flips raise nothing
        else:
            # Another space, or another name in place of "sha256", which no reader expects.
            assert found == CONTENT or found.keys() - CONTENT.keys()


def test_layout_and_order_do_not_matter(tmp_path):
    path = tmp_path / "file.json"
    write_json(path, {"b": 1, "a": {2: (3, 4)}})
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content, sort_keys=True))
    assert read_json(path) == {"b": 1, "a": {"2": [3, 4]}}


def test_json_of_an_earlier_version_has_no_checksum(tmp_path):
    (tmp_path / "file.json").write_text(json.dumps(CONTENT))
    assert read_json(tmp_path / "file.json") == CONTENT


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000, "\udcff"])
def test_what_is_no_dictionary_is_refused(tmp_path, text):
    path = tmp_path / "file.json"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(DamagedFileError, match=r"file\.json"):
        read_json(path)


class TestWriting:
    def test_on_the_disk_before_it_takes_its_place(self, tmp_path, monkeypatch):
        events, sync, replace = [], os.fsync, Path.replace
        path = tmp_path / "file"

        def synced(handle):
            events.append(os.fstat(handle).st_ino)
            sync(handle)

        def moved(temporary, target):
            events.append("moved")
            return replace(temporary, target)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(Path, "replace", moved)
        with atomic_path(path) as temporary:
            temporary.write_text("content")
        assert events == [path.stat().st_ino, "moved", tmp_path.stat().st_ino]

    def test_leftovers_of_killed_programs_are_removed_and_others_stay(self, tmp_path):
        for name in (".file.abc.tmp", ".file.def.tmp", ".other.abc.tmp", "file.tmp", ".file"):
            (tmp_path / name).write_text("half")
        with atomic_path(tmp_path / "file") as temporary:
            # Another program, as it were, that writes to the same file at the same time.
            with atomic_path(tmp_path / "file") as second:
                assert temporary.exists()
                second.write_text("second")
            temporary.write_text("first")
        kept = {".other.abc.tmp", "file.tmp", ".file", "file"}
        assert set(os.listdir(tmp_path)) == kept
        assert (tmp_path / "file").read_text() == "first"
        remove_leftovers(tmp_path)
        assert set(os.listdir(tmp_path)) == kept - {".other.abc.tmp"}

    @pytest.mark.parametrize("kind", ["json", "checkpoint", "posterior", "program", "onnx"])
    def test_a_full_disk(self, tmp_path, kind):
        path = tmp_path / "file"
        posterior = bbh.methods.maximum_a_posteriori(
            nn.Linear(100, 100), bbh.likelihoods.Categorical()
        )
        write = {
            "json": lambda: write_json(path, {"long": "x" * 10_000}),
            "checkpoint": lambda: checkpoints.write(path, {"state": torch.randn(10_000)}),
            "posterior": lambda: bbh.save(posterior, path),
            "program": lambda: bbh.export(posterior, torch.zeros(2, 100)).save(path),
            "onnx": lambda: bbh.export(posterior, torch.zeros(2, 100)).save_onnx(path),
        }[kind]
        if kind == "onnx":
            pytest.importorskip("onnxscript", reason="pip install 'bayes-by-hypernet[export]'")
        write()
        before = path.read_bytes()
        with files_of_at_most(5_000), pytest.raises(WriteError) as caught:
            write()
        assert str(caught.value).startswith(f"{path} cannot be written: ")
        assert "\n" not in str(caught.value)
        gc.collect()  # what is left of a writer may end the whole program
        assert os.listdir(tmp_path) == ["file"]
        assert path.read_bytes() == before

    def test_a_folder_that_is_none(self, tmp_path):
        (tmp_path / "file").write_text("no folder")
        with pytest.raises(WriteError, match=r"file/below cannot be written: File exists: .*/file"):
            write_json(tmp_path / "file" / "below", {})

    def test_other_errors_stay_what_they_are(self, tmp_path):
        def fails():
            with atomic_path(tmp_path / "file"):
                raise RuntimeError("something else")

        with pytest.raises(RuntimeError, match="something else"):
            fails()
        assert not os.listdir(tmp_path)


@contextmanager
def files_of_at_most(length):
    """Within the block no file can grow longer, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
