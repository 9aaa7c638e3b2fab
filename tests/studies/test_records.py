"""Records and their arrays: what was written is read, and damage is an error."""

import dataclasses
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bbh_studies import arrays
from bbh_studies.arrays import read_arrays
from bbh_studies.record import Record, RecordError
from studies.report_records import make_record

ARRAYS = {"entropy": np.linspace(0, 1, 50), "correct": np.arange(50) % 2 == 0}


def test_no_flipped_bit_goes_unnoticed(tmp_path):
    record = make_record("map", metrics={"error": 1.5, "nll": 0.25})
    record.write(tmp_path, ARRAYS)
    path = tmp_path / "record.json"
    known = Record.read(path)
    assert dataclasses.replace(known, arrays="") == Record.read(record.write(tmp_path / "other"))
    for file in (path, tmp_path / "arrays.npz"):
        whole, refused, tried = file.read_bytes(), 0, range(0, file.stat().st_size, 7)
        for position in tried:
            damaged = bytearray(whole)
            damaged[position] ^= 1 << position % 7
            file.write_bytes(damaged)
            try:
                # Only a space or line break may have changed.
                assert Record.read(path) == known
                read_arrays(tmp_path, known.arrays)
            except RecordError as error:
                assert str(file) in str(error)  # noqa: PT017
                refused += 1
        assert refused > 0.8 * len(tried)
        assert refused == len(tried) or file == path
        file.write_bytes(whole)
    assert read_arrays(tmp_path, known.arrays).keys() == ARRAYS.keys()


def test_a_lost_checksum_does_not_make_an_old_record(tmp_path):
    path = make_record().write(tmp_path, ARRAYS)
    lines = path.read_text().splitlines()
    assert "sha256" in lines[1]
    path.write_text("\n".join([lines[0], *lines[2:]]))
    with pytest.raises(RecordError, match="lacks its checksum"):
        Record.read(path)


def test_arrays_of_another_run_are_refused(tmp_path):
    make_record().write(tmp_path / "a", ARRAYS)
    make_record().write(tmp_path / "b", {"entropy": np.zeros(3)})
    (tmp_path / "b" / "arrays.npz").replace(tmp_path / "a" / "arrays.npz")
    known = Record.read(tmp_path / "a" / "record.json").arrays
    with pytest.raises(RecordError, match=re.escape(str(tmp_path / "a" / "arrays.npz"))):
        read_arrays(tmp_path / "a", known)


@pytest.mark.parametrize(
    ("field", "junk"),
    [
        ("study", 3),
        ("seed", 1.5),
        ("seed", True),
        ("config", []),
        ("metrics", {"error": "high"}),
        ("metrics", {"error": 10**400}),
        ("metrics", [1.0]),
        ("history", [{"epoch": []}]),
        ("history", {"epoch": 1}),
        ("data", {"mnist": 3}),
        ("dirty", "no"),
        ("commit", 7),
        ("arrays", None),
        ("curves", {"accuracy": [1.0]}),
        ("curves", {"epsilon": [1.0], "accuracy": ["x"]}),
    ],
)
def test_other_types_than_a_record_has_are_refused(tmp_path, field, junk):
    content = dataclasses.asdict(make_record()) | {field: junk}
    (tmp_path / "record.json").write_text(json.dumps(content))
    with pytest.raises(RecordError, match=rf"record\.json is no record .* {field}"):
        Record.read(tmp_path / "record.json")


class TestArrays:
    """Archives that were tampered with: our own error, before memory is taken for what they say."""

    def refused(self, folder, match):
        with pytest.raises(RecordError, match=match) as caught:
            read_arrays(folder)
        assert str(folder / "arrays.npz") in str(caught.value)

    def write(self, folder, content):
        with zipfile.ZipFile(folder / "arrays.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.npy", content)

    def header(self, text):
        """An array's header as NumPy writes it, with any description."""
        padded = text.encode().ljust(117) + b"\n"
        return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded

    def test_what_is_no_archive(self, tmp_path):
        for content in (b"", b"nothing", bytes(1000)):
            (tmp_path / "arrays.npz").write_bytes(content)
            self.refused(tmp_path, "cannot be read")

    def test_damaged_bytes(self, tmp_path):
        make_record().write(tmp_path, ARRAYS)
        whole, refused = (tmp_path / "arrays.npz").read_bytes(), 0
        for position in range(0, len(whole), 3):
            damaged = bytearray(whole)
            damaged[position] ^= 0x55
            (tmp_path / "arrays.npz").write_bytes(damaged)
            try:
                read_arrays(tmp_path)
            except RecordError:
                refused += 1
        assert refused > 100

    @pytest.mark.parametrize("shape", [(10**12,), (2**31, 2**31), (3,), (-5,)])
    def test_declared_shapes(self, tmp_path, shape):
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"
        self.write(tmp_path, self.header(header) + bytes(16))
        self.refused(tmp_path, r"declares .* bytes and has others|cannot be read")

    @pytest.mark.parametrize("kind", ["|O", "<U5", "<c16", "<M8[s]", "|V8"])
    def test_what_figures_cannot_show(self, tmp_path, kind):
        header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': (), }}"
        self.write(tmp_path, self.header(header) + bytes(np.dtype(kind).itemsize))
        self.refused(tmp_path, "cannot be read")

    def test_a_bomb(self, tmp_path, monkeypatch):
        monkeypatch.setattr(arrays, "_LARGEST_BYTES", 1000)
        self.write(tmp_path, bytes(2000))
        self.refused(tmp_path, "would have 2,000 bytes")

    def test_pickles_are_never_opened(self, tmp_path):
        marker = tmp_path / "executed"

        class Exploit:
            def __reduce__(self):
                return Path.touch, (marker,)

        np.savez(tmp_path / "arrays.npz", a=np.array(Exploit(), dtype=object))
        self.refused(tmp_path, "cannot be read")
        assert not marker.exists()
