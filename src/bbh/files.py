"""Writes files atomically, and with checksums that tell damage from what was written."""

import hashlib
import json
import os
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

_CHUNK = 2**20
# The last line of a sealed file: this word, and the SHA-256 of everything before the line.
_SEAL = b"\nsha256 "
_SEAL_BYTES = len(_SEAL) + 64 + 1
_CHECKSUM = "sha256"


class DamagedFileError(ValueError):
    """A file is not what was written; the message names it."""


class WriteError(OSError):
    """A file cannot be written: the disk is full, say, or must not be written to."""


@contextmanager
def atomic_path(path: Path) -> Generator[Path]:
    """A temporary file that replaces ``path`` only if the block succeeds.

    The content is on the disk before it replaces what was there, so that not even a power failure
    leaves half a file. What interrupted programs have left of the same file is removed first.

    Raises:
        WriteError: The file cannot be written; one that was there before is still there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent, path.name)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        temporary = Path(name)
        try:
            try:
                try_to_lock(handle)
                yield temporary
                # mkstemp makes the file readable to its owner only; give it the usual permissions.
                umask = os.umask(0)
                os.umask(umask)
                temporary.chmod(0o666 & ~umask)
                _sync(temporary)
            finally:
                os.close(handle)  # Windows neither moves nor deletes an open file
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        with suppress(OSError):  # not every system can do this with a folder
            _sync(path.parent)
    except (OSError, RuntimeError) as error:
        # PyTorch raises an error of its own where the system's is the reason.
        reason = error if isinstance(error, OSError) else error.__context__
        if not isinstance(reason, OSError):
            raise
        words = [reason.strerror or str(reason), *([reason.filename] if reason.filename else [])]
        raise WriteError(f"{path} cannot be written: {': '.join(words)}.") from error


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Deletes temporary files of ``atomic_path`` whose program was killed.

    Files that a living program writes to are locked and stay.

    Args:
        folder: Where to look.
        name: Name of the file that was being written; by default all files.
    """
    for path in folder.glob(f".{name}.*.tmp"):
        with suppress(OSError), path.open("r+b") as file:
            if try_to_lock(file.fileno()):
                path.unlink()


def try_to_lock(handle: int) -> bool:
    """Locks an open file until it is closed or the program ends; whether that was possible."""
    if fcntl is None:  # on Windows: nothing is locked and nothing is deleted
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sync(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def seal(path: Path) -> None:
    """Appends the checksum of a file's content, for formats that ignore what follows their end."""
    checksum = sha256(path).encode()
    with path.open("ab") as file:
        file.write(_SEAL + checksum + b"\n")


def check_seal(path: Path) -> None:
    """Raises ``DamagedFileError`` unless the file is what it was when it was sealed."""
    length = max(0, path.stat().st_size - _SEAL_BYTES)
    with path.open("rb") as file:
        file.seek(length)
        found = file.read(_SEAL_BYTES)
    if found != _SEAL + sha256(path, length).encode() + b"\n":
        raise DamagedFileError(f"{path} is truncated or damaged: its checksum does not match")


def sha256(path: Path, length: int | None = None) -> str:
    """SHA-256 of a file, or of its first bytes."""
    digest = hashlib.sha256()
    left = path.stat().st_size if length is None else length
    with path.open("rb") as file:
        while left > 0 and (chunk := file.read(min(_CHUNK, left))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a dictionary as JSON, atomically and with a checksum of its content."""
    text = json.dumps({_CHECKSUM: _checksum(content), **content}, indent=1)
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path, *, newer: str = "") -> dict[str, Any]:
    """Reads a dictionary that ``write_json`` wrote, without the checksum.

    Files of earlier versions have no checksum and are read without one.

    Args:
        path: The file.
        newer: A key that files of earlier versions do not have: with a value for it a file must
            have a checksum, so that none is taken for an old one whose checksum was lost. Best is
            the last key, since the checksum is the first.

    Raises:
        DamagedFileError: The file holds no such dictionary, or its content was changed.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is no JSON ({error or type(error).__name__})") from error
    if not isinstance(content, dict):
        raise DamagedFileError(f"{path} holds no JSON object")
    known: dict[str, Any] = content
    if known.get(newer) and _CHECKSUM not in known:
        raise DamagedFileError(f"{path} lacks its checksum")
    if _CHECKSUM in known and known.pop(_CHECKSUM) != _checksum(known):
        raise DamagedFileError(f"{path} was changed after it was written: its checksum differs")
    return known


def _checksum(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content as JSON reads it back, whatever its order and layout."""
    plain = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
