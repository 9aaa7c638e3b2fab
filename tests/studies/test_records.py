"""Records and their arrays: what was written is read, and damage is an error."""

import dataclasses
import re

import numpy as np
import pytest

from bbh_studies.record import Record, RecordError, read_arrays
from studies.report_records import make_record

ARRAYS = {"entropy": np.linspace(0, 1, 50), "correct": np.arange(50) % 2 == 0}


def test_no_flipped_bit_goes_unnoticed(tmp_path):
    record = make_record("map", metrics={"error": 1.5, "nll": 0.25})
    record.write(tmp_path, ARRAYS)
    path, arrays = tmp_path / "record.json", tmp_path / "arrays.npz"
    known = Record.read(path)
    assert dataclasses.replace(known, arrays="") == Record.read(record.write(tmp_path / "other"))
    for file in (path, arrays):
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


def test_arrays_of_another_run_are_refused(tmp_path):
    make_record().write(tmp_path / "a", ARRAYS)
    make_record().write(tmp_path / "b", {"entropy": np.zeros(3)})
    (tmp_path / "b" / "arrays.npz").replace(tmp_path / "a" / "arrays.npz")
    known = Record.read(tmp_path / "a" / "record.json").arrays
    with pytest.raises(RecordError, match=re.escape(str(tmp_path / "a" / "arrays.npz"))):
        read_arrays(tmp_path / "a", known)
