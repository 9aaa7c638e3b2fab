"""Files that are damaged, changed or from a newer version are refused, and none is half-written."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import bbh
from bbh.storage import files as storage
from bbh.storage.files import StorageError
from scenarios import mlp
from storage.small import posterior_of, read


def rewrite(path, change):
    """Changes the description inside a file."""
    tensors = {}
    with storage.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        for name in file.keys():  # noqa: SIM118
            tensors[name] = file.get_tensor(name)
    description = json.loads(metadata["bbh"])
    change(description)
    save_file(tensors, path, metadata={"bbh": json.dumps(description)})


def resign(description, path):
    """A checksum that fits, as if this very description had been saved."""
    with storage.safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    description.pop("digest")
    description["digest"] = storage._digest(description, tensors)


class TestDamage:
    @pytest.fixture
    def path(self, tmp_path):
        bbh.save(posterior_of(nn.Linear(2, 3)), tmp_path / "file")
        return tmp_path / "file"

    def load(self, path):
        return bbh.load(path, nn.Linear(2, 3))

    def test_truncated_anywhere(self, path):
        whole = path.read_bytes()
        for length in [0, 1, 7, 8, 9, *range(10, len(whole) - 1, 23), len(whole) - 1]:
            path.write_bytes(whole[:length])
            with pytest.raises(StorageError):
                self.load(path)
        path.write_bytes(whole)
        self.load(path)

    def test_extended(self, path):
        path.write_bytes(path.read_bytes() + b"more")
        with pytest.raises(StorageError):
            self.load(path)

    def test_every_byte_of_the_data_counts(self, path):
        _, start, whole = read(path)
        assert len(whole) - start == 2 * (6 + 3) * 4  # means and scales of nine weights
        for position in range(start, len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 0x10
            path.write_bytes(damaged)
            with pytest.raises(StorageError, match="checksum"):
                self.load(path)

    def test_flipped_bytes_of_the_header(self, path):
        """Refused, or harmless: a changed space or name's order gives the same posterior."""
        expected = self.load(path).state_dict()
        _, start, whole = read(path)
        refused = 0
        for position in range(0, start, 5):
            damaged = bytearray(whole)
            damaged[position] ^= 0x04
            path.write_bytes(damaged)
            try:
                loaded = self.load(path)
            except StorageError:
                refused += 1
            else:
                for name, value in loaded.state_dict().items():
                    assert torch.equal(value, expected[name])
        assert refused > 0.9 * start / 5

    def test_tensors_without_a_description(self, path):
        save_file({"a": torch.ones(3)}, path)
        with pytest.raises(StorageError, match="no posterior of bbh"):
            self.load(path)
        save_file({"a": torch.ones(3)}, path, metadata={"bbh": "not json"})
        with pytest.raises(StorageError, match="no posterior of bbh"):
            self.load(path)
        save_file({"a": torch.ones(3)}, path, metadata={"bbh": "[]"})
        with pytest.raises(StorageError, match="no posterior of bbh"):
            self.load(path)

    def test_a_changed_argument_is_noticed(self, path):
        def widen(description):
            description["prior"]["scale"] = 3.0

        rewrite(path, widen)
        with pytest.raises(StorageError, match="changed after it was saved"):
            self.load(path)

    def test_newer_format_asks_for_an_upgrade(self, path):
        def newer(description):
            description["format"] = storage.FORMAT + 1
            description["versions"]["bbh"] = "99.0"

        rewrite(path, newer)
        with pytest.raises(StorageError, match=r"format 2, written by bbh 99\.0.*Upgrade"):
            self.load(path)

    def test_newer_objects_in_the_same_format(self, path):
        def newer(description):
            description["prior"] = {"type": "Horseshoe", "scale": 1.0}
            description["versions"]["bbh"] = "99.0"
            resign(description, path)

        rewrite(path, newer)
        with pytest.raises(StorageError, match=r"written by bbh 99\.0.*Horseshoe"):
            self.load(path)

    def test_unknown_method(self, path):
        def other(description):
            description["method"] = "stochastic_gradient_langevin"
            resign(description, path)

        rewrite(path, other)
        with pytest.raises(StorageError, match="stochastic_gradient_langevin"):
            self.load(path)

    def test_missing(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            self.load(tmp_path / "nowhere")

    def test_pickles_are_never_opened(self, tmp_path):
        marker = tmp_path / "executed"

        class Exploit:
            def __reduce__(self):
                return Path.touch, (marker,)

        (tmp_path / "plain").write_bytes(pickle.dumps(Exploit()))
        torch.save({"state": Exploit()}, tmp_path / "torch")
        for name in ("plain", "torch"):
            with pytest.raises(StorageError, match="no safetensors file"):
                self.load(tmp_path / name)
        assert not marker.exists()


class TestAtomic:
    def test_failure_in_the_middle_leaves_the_old_file(self, tmp_path, monkeypatch):
        path = tmp_path / "file"
        bbh.save(posterior_of(), path)
        before = path.read_bytes()

        def half(tensors, target, metadata):
            save_file(tensors, target, metadata)
            Path(target).write_bytes(Path(target).read_bytes()[:100])
            raise OSError("no space left on device")

        monkeypatch.setattr(storage, "save_file", half)
        with pytest.raises(OSError, match="no space"):
            bbh.save(posterior_of(), path)
        assert path.read_bytes() == before
        assert [one.name for one in tmp_path.iterdir()] == ["file"]

    def test_overwrites_when_all_goes_well(self, tmp_path):
        path = tmp_path / "new" / "folder" / "file"
        first, second = posterior_of(), posterior_of()
        bbh.save(first, path)
        bbh.save(second, path)
        loaded = bbh.load(path, mlp())
        assert torch.equal(loaded.weights.loc()["0.weight"], second.weights.loc()["0.weight"])
        assert not torch.equal(loaded.weights.loc()["0.weight"], first.weights.loc()["0.weight"])

    def test_readable_like_any_other_file(self, tmp_path):
        bbh.save(posterior_of(), tmp_path / "file")
        (tmp_path / "other").write_text("")
        assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode

    def test_saving_draws_no_random_numbers(self, tmp_path):
        posterior, state = posterior_of(), torch.get_rng_state()
        bbh.save(posterior, tmp_path / "file")
        assert torch.equal(torch.get_rng_state(), state)
