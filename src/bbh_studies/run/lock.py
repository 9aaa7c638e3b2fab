"""A lock on the folder of a run: two programs that write to one folder would mix their results."""

import os
from contextlib import suppress
from pathlib import Path

from bbh.files import WriteError, remove_leftovers, try_to_lock

FILE_NAME = ".lock"


class InUseError(ValueError):
    """Another program writes to the same folder."""


class FolderLock:
    """The right to write to a folder, held by one program at a time.

    The operating system ends it with the program, however the program ends. (On Windows nothing is
    locked.)

    Args:
        folder: The folder, which is made if it does not exist.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._handle: int | None = None
        self._made: list[Path] = []

    def take(self) -> None:
        """Takes the lock, and deletes what interrupted programs have left half written.

        Raises:
            InUseError: Another program holds the lock.
            WriteError: The folder cannot be written to.
        """
        path = self.folder / FILE_NAME
        self._made = [one for one in (self.folder, *self.folder.parents) if not one.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            self._remove_folders()
            raise WriteError(f"{self.folder} cannot be written to: {error.strerror}.") from error
        # The holder deletes the file in the end: what is locked must be what lies there.
        if os.name == "posix" and not (try_to_lock(handle) and _is_same_file(handle, path)):
            os.close(handle)
            raise InUseError(
                f"another program writes to {self.folder}. Wait for it, or choose another --out."
            )
        self._handle = handle
        remove_leftovers(self.folder)

    def release(self) -> None:
        """Gives the lock back; folders that were made for it and are still empty go with it."""
        if self._handle is not None:
            (self.folder / FILE_NAME).unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None
            self._remove_folders()

    def __enter__(self) -> "FolderLock":
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _remove_folders(self) -> None:
        with suppress(OSError):
            for folder in self._made:
                folder.rmdir()


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False
