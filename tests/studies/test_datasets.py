"""Data files: read exactly, and refused with a reason when damaged."""

import gzip
import hashlib
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bbh_studies.datasets import DataError, draw_letters, load_digits, load_mnist
from bbh_studies.datasets.idx import read_idx
from bbh_studies.datasets.letters import draw_glyph
from bbh_studies.datasets.sources import MNIST, NOTMNIST, IdxFile

SHAPE = (3, 2, 2)
PIXELS = bytes(range(12))
WHOLE = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in SHAPE) + PIXELS
ZIPPED = gzip.compress(WHOLE, mtime=0)


def write(folder: Path, content: bytes) -> Path:
    path = folder / "images-idx3-ubyte"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzipped"])
def test_reads_the_publishers_format(tmp_path, pack):
    images = read_idx(write(tmp_path, pack(WHOLE)), SHAPE)
    assert images.tolist() == torch.arange(12).view(SHAPE).tolist()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "starts with nothing"),
        (b"\x00\x00\x08\x01" + WHOLE[4:], "starts with 00000801"),
        (WHOLE[:-1], "truncated or too long"),
        (WHOLE + b"\x00", "truncated or too long"),
        (WHOLE[:10], "shape"),
        (WHOLE[:7] + b"\x04" + WHOLE[8:], r"shape \(4, 2, 2\), expected \(3, 2, 2\)"),
        (ZIPPED[:-9], "cannot be read"),
        (ZIPPED[:15] + b"????" + ZIPPED[19:], "cannot be read|shape"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value,
)
def test_damaged_files_are_named_with_a_remedy(tmp_path, content, problem):
    path = write(tmp_path, content)
    with pytest.raises(DataError, match=problem) as raised:
        read_idx(path, SHAPE)
    assert str(path) in str(raised.value)
    assert "bbh data fetch" in str(raised.value)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzipped"])
def test_noise_of_the_right_shape_is_not_the_publishers(tmp_path, pack):
    known = hashlib.sha256(WHOLE).hexdigest()
    assert read_idx(write(tmp_path, pack(WHOLE)), SHAPE, known).shape == SHAPE
    path = write(tmp_path, pack(WHOLE[:-1] + b"\xff"))
    with pytest.raises(DataError, match="is not the publisher's: its checksum differs"):
        read_idx(path, SHAPE, known)


def test_checking_does_not_call_noise_good(tmp_path):
    (tmp_path / "mnist").mkdir()
    name = "t10k-labels-idx1-ubyte"
    header = bytes([0, 0, 8, 1]) + (10_000).to_bytes(4, "big")
    (tmp_path / "mnist" / name).write_bytes(header + bytes(10_000))
    with pytest.raises(DataError, match=f"{name} is not the publisher's"):
        MNIST[name].check(tmp_path)


def test_no_more_is_unpacked_than_needed(tmp_path, monkeypatch):
    """A small file may unpack to any length."""
    asked = []
    real = gzip.GzipFile.read
    monkeypatch.setattr(
        gzip.GzipFile, "read", lambda file, size=-1: asked.append(size) or real(file, size)
    )
    path = write(tmp_path, gzip.compress(WHOLE + bytes(10**6)))
    with pytest.raises(DataError, match="more than 28 bytes unpacked, expected 28"):
        read_idx(path, SHAPE)
    assert asked == [len(WHOLE) + 1]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_read_or_refused(tmp_path_factory, content, zipped):
    path = write(tmp_path_factory.mktemp("fuzz"), gzip.compress(content) if zipped else content)
    try:
        images = read_idx(path, SHAPE)
    except DataError:
        return
    assert images.shape == SHAPE


def test_missing_files_name_the_offline_options(tmp_path):
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.*--data.*BBH_DATA"):
        load_mnist(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        load_mnist(tmp_path / "nowhere")


def test_no_network_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("BBH_CACHE", str(tmp_path))
    # A port on this machine that nobody listens on.
    source = IdxFile("mnist", "missing", "0" * 64, ("http://127.0.0.1:9/",), (1,), "")
    with pytest.raises(DataError, match=r"could not be fetched.*--data"):
        source.fetch()
    assert not list(tmp_path.rglob("missing*"))


def test_each_data_set_is_found_in_its_own_folder_only(tmp_path):
    name = "t10k-images-idx3-ubyte"
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / f"{name}.gz").write_bytes(b"")
    (tmp_path / name).write_bytes(b"")  # whose is it?
    assert MNIST[name].find(tmp_path) == tmp_path / "mnist" / f"{name}.gz"
    with pytest.raises(DataError, match="notmnist"):
        NOTMNIST[name].find(tmp_path)


def test_mnist_is_split_as_in_the_paper(data_dir):
    data = load_mnist(data_dir)
    assert data.train_images.shape == (55_000, 1, 28, 28)
    assert data.validation_images.shape == (5_000, 1, 28, 28)
    assert data.test_images.shape == data.outlier_images.shape == (10_000, 1, 28, 28)
    assert 0 == data.train_images.min() < data.train_images.max() == 1
    # Known from the publisher: the first training digits are 5, 0, 4, 1, the test's 7, 2, 1, 0.
    assert data.validation_labels[:4].tolist() == [5, 0, 4, 1]
    assert data.test_labels[:4].tolist() == [7, 2, 1, 0]
    assert data.test_labels.bincount().tolist()[:3] == [980, 1135, 1032]


def test_letters_are_deterministic_pictures():
    first, again, other = draw_letters(50, 8), draw_letters(50, 8), draw_letters(50, 8, seed=1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (50, 1, 8, 8)
    assert first.min() >= 0
    assert first.max() <= 1
    # As much ink as a digit has, within a factor of two: brightness alone must not tell.
    ink = load_digits().test_images.mean()
    assert 0.5 < first.mean() / ink < 2


def test_holes_of_letters_are_empty():
    glyph = draw_glyph("D", "DejaVu Sans", 28)[0]
    assert glyph[112, 112] == 0  # the middle of the bowl
    assert glyph.mean() > 0.1


def test_digits_do_not_overlap_between_splits():
    data = load_digits()
    splits = [data.train_images, data.validation_images, data.test_images]
    assert [len(one) for one in splits] == [1097, 200, 500]
    rows = torch.cat(splits).flatten(1)
    assert len(rows.unique(dim=0)) == len(rows)
