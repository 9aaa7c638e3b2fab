"""CIFAR-10 in both layouts, read exactly or refused with a reason, and CIFAR5's splits."""

import os
import pickle
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bbh_studies.datasets import DataError, cifar10, load_cifar5
from bbh_studies.datasets.cifar10 import CIFAR10, Cifar10Data, moments
from bbh_studies.datasets.pickled import PickleError, read_images_and_labels
from studies.tiny_cifar import (
    ALL_FILES,
    PER_FILE,
    make_files,
    pack,
    shrink,
    write_binary,
    write_python,
)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    shrink(monkeypatch)


def assert_read_exactly(data: Cifar10Data) -> None:
    files = make_files()
    train = [files[name] for name in ALL_FILES[:-1]]
    images = np.concatenate([one for one, _ in train]).reshape(-1, 3, 32, 32)
    assert np.array_equal(data.train_images.numpy(), images)
    assert data.train_labels.tolist() == np.concatenate([one for _, one in train]).tolist()
    assert np.array_equal(data.test_images.numpy().reshape(PER_FILE, -1), files["test_batch"][0])
    assert data.test_labels.tolist() == files["test_batch"][1].tolist()


def assert_named(name: str, error: DataError) -> None:
    assert name in str(error)
    assert "bbh data fetch cifar10" in str(error)


@pytest.mark.parametrize("below", [".", "cifar10"])
def test_the_binary_layout(tmp_path, below):
    own = write_binary(tmp_path / below)
    assert_read_exactly(CIFAR10.read(tmp_path))
    pack(own, "cifar-10-binary.tar.gz")
    shutil.rmtree(own)
    assert_read_exactly(CIFAR10.read(tmp_path))


@pytest.mark.parametrize("protocol", [2, 4])
def test_the_python_layout(tmp_path, protocol):
    own = write_python(tmp_path, protocol)
    assert_read_exactly(CIFAR10.read(tmp_path))
    pack(own, "cifar-10-python.tar.gz")
    shutil.rmtree(own)
    assert_read_exactly(CIFAR10.read(tmp_path))


def test_pickles_of_python_2():
    """Opcodes as Python 2 wrote them: strings without a kind, the names of old NumPy."""
    pixels = bytes(range(6))
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x06" + pixels + b"tb"
    )
    content = b"\x80\x02}(U\x04data" + array + b"U\x06labels](K\x01K\x09eu."
    images, labels = read_images_and_labels(content, (2, 3))
    assert images.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert labels.tolist() == [1, 9]


class Malicious:
    def __reduce__(self):
        return os.system, ("exit 7",)


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        (Malicious(), "it asks for posix.system"),
        ([1, 2], "no dictionary"),
        ({}, "no bytes of shape"),
        ({"data": np.zeros((2, 3)), "labels": [0, 1]}, "no bytes of shape"),
        ({"data": np.zeros((3, 2), np.uint8), "labels": [0, 1]}, "no bytes of shape"),
        ({"data": np.zeros((2, 3), np.uint8), "labels": [0]}, "no list of 2"),
        ({"data": np.zeros((2, 3), np.uint8), "labels": [0, "cat"]}, "no small numbers"),
        ({"data": np.zeros((2, 3), np.uint8), "labels": [0, 256]}, "no small numbers"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_pickles_of_something_else(batch, problem):
    with pytest.raises(PickleError, match=problem):
        read_images_and_labels(pickle.dumps(batch, 2), (2, 3))


def test_columns_may_come_first():
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    batch = {"data": np.asfortranarray(pixels), "labels": [0, 1]}
    images, _ = read_images_and_labels(pickle.dumps(batch, 2), (2, 3))
    assert images.tolist() == pixels.tolist()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "truncated or too long: 0 bytes"),
        (b"\x00" * (PER_FILE * 3073 - 1), "truncated or too long"),
        (b"\x00" * (PER_FILE * 3073 + 1), "truncated or too long"),
        (b"\x0a" * (PER_FILE * 3073), "label 10 where there are 10 classes"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_damaged_binary_files_are_named_with_a_remedy(tmp_path, content, problem):
    path = write_binary(tmp_path) / "data_batch_3.bin"
    path.write_bytes(content)
    with pytest.raises(DataError, match=problem) as raised:
        CIFAR10.read(tmp_path)
    assert str(path) in str(raised.value)
    assert "bbh data fetch cifar10" in str(raised.value)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz.*--data.*BBH_DATA"):
        CIFAR10.read(tmp_path)
    own = write_binary(tmp_path)
    (own / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"test_batch.bin cannot be read"):
        CIFAR10.read(tmp_path)
    pack(own, "cifar-10-binary.tar.gz")
    shutil.rmtree(own)
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz lacks test_batch.bin"):
        CIFAR10.read(tmp_path)


def test_files_that_are_far_too_long_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "_LARGEST_BYTES", 1000)
    own = write_binary(tmp_path)
    with pytest.raises(DataError, match="is too long: 122,920 bytes"):
        CIFAR10.read(tmp_path)
    pack(own, "cifar-10-binary.tar.gz")
    shutil.rmtree(own)
    with pytest.raises(DataError, match="is too long: 122,920 bytes"):
        CIFAR10.read(tmp_path)


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """A folder with both layouts, packed."""
    folder = tmp_path_factory.mktemp("archives")
    pack(write_binary(folder), "cifar-10-binary.tar.gz")
    pack(write_python(folder), "cifar-10-python.tar.gz")
    return folder


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"]),
    where=st.floats(0, 1, exclude_max=True),
    change=st.integers(0, 255),
)
def test_damaged_archives_are_read_or_refused(tmp_path_factory, archives, name, where, change):
    content = bytearray((archives / name).read_bytes())
    place = int(where * len(content))
    if change:
        content[place] ^= change
    else:
        del content[place:]
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / name).write_bytes(content)
    try:
        read = CIFAR10.read(folder)
    except DataError as error:
        assert_named(name, error)
        return
    assert_read_exactly(read)  # a byte that nobody reads was hit


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_pickles_are_read_or_refused(data):
    batch = {b"data": np.arange(12, dtype=np.uint8).reshape(4, 3), b"labels": [0, 1, 2, 3]}
    content = bytearray(pickle.dumps(batch, data.draw(st.sampled_from([2, 4]))))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        images, labels = read_images_and_labels(bytes(content), (4, 3))
    except PickleError:
        return
    assert images.shape == (4, 3)
    assert labels.shape == (4,)


def test_a_damaged_index_does_not_fill_the_memory():
    # An empty list remembered under a number of two billion, as a flipped bit would make it.
    with pytest.raises(PickleError, match="no dictionary"):
        read_images_and_labels(b"\x80\x02]r\xff\xff\xff\x7f.", (2, 3))


# A name in the top of whose memory lie tuples of tuples, forty deep: to hash them takes 2⁴⁰ steps.
NESTED = b")q\x00" + b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(40))
RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\x80\x02}" + NESTED + b"K\x00s.", "keys that are no names"),
        (b"\x80\x02}(" + NESTED + b"K\x00u.", "keys that are no names"),
        (b"\x80\x02}(K\x00K\x00u.", "keys that are no names"),
        (b"\x80\x04" + b"]" * 1000 + b".", "far too many instructions"),
        (b"\x80\x05\x96" + (2**60).to_bytes(8, "little") + b".", "ValueError|BYTEARRAY8"),
        (b"\x80\x02(" + b"K\x002" * 50 + b"t.", "instruction DUP"),
        (b"\x80\x02" + RECONSTRUCT + b"}U\x01aK\x01sb.", "changes or calls a _Called"),
        (b"\x80\x02]}U\x01aK\x01sb.", "changes or calls a list"),
        (b"\x80\x02]K\x01\x85R.", "changes or calls a list"),
        (b"\x80\x02U\x05array)R.", "changes or calls a bytes"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "calls a class"),
        (b"\x80\x02}K\x01a.", "changes or calls a dict"),
        (b"\x80\x02K\x01\x86.", "takes what is not there"),
        (b"\x80\x02cbuiltins\neval\nU\x011\x85R.", r"asks for builtins\.eval"),
    ],
)
def test_pickles_that_would_take_for_ever_or_all_memory(content, problem):
    with pytest.raises(PickleError, match=problem):
        read_images_and_labels(content, (2, 3))


def test_bytes_are_not_multiplied():
    """The same long text encoded again and again."""
    text = b"X" + (1000).to_bytes(4, "little") + b"a" * 1000 + b"q\x00"
    encode = b"c_codecs\nencode\nq\x01"
    again = b"h\x01h\x00U\x06latin1\x86R"
    with pytest.raises(PickleError, match="more of its bytes than it has"):
        read_images_and_labels(b"\x80\x02](" + encode + text + again * 20 + b"e.", (2, 3))


def test_archives_that_unpack_to_anything(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "_LARGEST_ARCHIVE", 10**5)
    own = write_binary(tmp_path)
    (own / "bomb").write_bytes(bytes(10**6))
    path = pack(own, "cifar-10-binary.tar.gz")
    shutil.rmtree(own)
    with pytest.raises(DataError, match="it unpacks to far more than CIFAR-10 has") as raised:
        CIFAR10.read(tmp_path)
    assert_named(path.name, raised.value)


def test_five_classes_train_and_the_others_are_outliers(tmp_path):
    write_binary(tmp_path)
    data = load_cifar5(tmp_path)
    chosen = data.for_choosing()
    # Twenty training images and four test images of each class; a tenth of the former chooses.
    assert len(data.train_images) == 100
    assert len(chosen.train_images) == 90
    assert len(chosen.test_images) == len(chosen.outlier_images) == 10
    assert len(data.test_images) == len(data.outlier_images) == 20
    for images, labels in (
        (data.train_images, data.train_labels),
        (data.test_images, data.test_labels),
        (chosen.train_images, chosen.train_labels),
        (chosen.test_images, chosen.test_labels),
    ):
        # The first pixel tells the class.
        assert (images[:, 0, 0, 0] * 255).round().tolist() == labels.tolist()
        counts = labels.bincount().tolist()
        assert counts == [len(labels) // 5] * 5
    for outliers in (data.outlier_images, chosen.outlier_images):
        assert set((outliers[:, 0, 0, 0] * 255).round().tolist()) == {5, 6, 7, 8, 9}


def test_splits_are_disjoint_and_choosing_sees_no_test_image(tmp_path):
    write_binary(tmp_path)
    data = load_cifar5(tmp_path)
    chosen = data.for_choosing()
    parts = (
        *(chosen.train_images, chosen.test_images, chosen.outlier_images),
        *(data.test_images, data.outlier_images),
    )
    rows = torch.cat(parts).flatten(1)
    assert len(rows.unique(dim=0)) == len(rows)
    # The second pixel tells the file, of which the sixth is the test's.
    from_test = [set((one[:, 0, 0, 1] * 255).round().tolist()) == {5} for one in parts]
    assert from_test == [False, False, False, True, True]
    assert 5 not in (torch.cat(parts[:3])[:, 0, 0, 1] * 255).round()
    assert chosen.outlier_name == "CIFAR-10's other classes of training"


def test_moments_by_hand():
    images = torch.tensor([0, 255, 51, 51, 0, 0], dtype=torch.uint8).view(1, 3, 1, 2)
    means, scales = moments(images)
    assert means.tolist() == pytest.approx([0.5, 0.2, 0.0])
    assert scales.tolist() == pytest.approx([0.5, 0.0, 0.0], abs=1e-8)


def test_other_pixels_than_the_publishers_are_told(tmp_path, monkeypatch):
    write_binary(tmp_path)
    data = load_cifar5(tmp_path)
    assert data.pixels == "not the publisher's: a recoded copy"
    means, scales = moments(CIFAR10.read(tmp_path).train_images)
    monkeypatch.setattr(cifar10, "MEANS", tuple(means.tolist()))
    monkeypatch.setattr(cifar10, "SCALES", tuple(scales.tolist()))
    assert load_cifar5(tmp_path).pixels == ""
    assert load_cifar5(tmp_path).fingerprint == data.fingerprint
    # One pixel of one image by half its range is enough.
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 128
    path.write_bytes(content)
    changed = load_cifar5(tmp_path)
    assert changed.fingerprint != data.fingerprint
    assert changed.pixels


def test_the_whole_of_cifar10(data_dir, monkeypatch):
    monkeypatch.undo()
    try:
        data = load_cifar5(data_dir)
    except DataError as error:
        pytest.skip(f"no CIFAR-10 below BBH_DATA: {error}")
    assert data.train_images.shape == (25_000, 3, 32, 32)
    assert data.train_labels.bincount().tolist() == [5_000] * 5
    assert data.test_labels.bincount().tolist() == [1_000] * 5
    assert len(data.outlier_images) == 5_000
    chosen = data.for_choosing()
    assert chosen.train_labels.bincount().tolist() == [4_500] * 5
    assert chosen.test_labels.bincount().tolist() == [500] * 5
    assert len(chosen.outlier_images) == 2_500
    # JPEG or not, the colours are those of CIFAR-10.
    found, _ = moments((data.train_images * 255).round().byte())
    assert found.tolist() == pytest.approx([0.4905, 0.4855, 0.4508], abs=2e-3)
