"""Files: a file is what was written, or an error says that it is not."""

import hashlib
import json

import pytest

from bbh.files import DamagedFileError, check_seal, read_json, seal, sha256, write_json

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
