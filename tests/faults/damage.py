"""Reads files of every kind that were damaged or tampered with, and sees what comes of it."""

import json
import os
import random
import resource
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from faults.children import run
from faults.kills import fingerprint
from faults.specimens import SPECIMENS, Specimen, damaged
from faults.tally import Tally

REFUSED, SAME, ACCEPTED = "refused", "read as before", "accepted where no checksum tells"
_SECONDS = 30  # to read a small file; more counts as hanging
_MEMORY = 4 * 2**30
# What no file may make a process do.
_FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen")
_FORBIDDEN += ("socket.connect", "shutil.rmtree", "ctypes.dlopen")


class _HungError(BaseException):
    """Not an Exception, which readers may turn into their own errors."""


class _CodeError(BaseException):
    """Something forbidden was asked for."""


def damage(kind: str, number: int, seed: int) -> Tally:
    """Damages a file of this kind in many ways, and reads it each time.

    It is refused with an error of its own kind, or read as what it was. Where no checksum tells, it
    may also be read as something else: never may it end in another error, a crash or code.
    """
    allowed = () if SPECIMENS[kind].digest else (ACCEPTED,)
    tally = Tally(f"damaged: {kind}", (REFUSED, SAME, *allowed))
    done = 0
    with tempfile.TemporaryDirectory() as name:
        results = Path(name) / "results"
        while done < number:
            results.write_text("")
            code = run(_read_many, kind, done, number, seed, Path(name) / str(done), results)
            lines = results.read_text().splitlines()
            for line in lines:
                index, outcome = json.loads(line)
                tally.add(outcome, f"seed {seed}, number {index}")
            done += len(lines)
            if code != 0:  # the file that it was reading
                tally.add("hung" if code is None else "crashed", f"seed {seed}, number {done}")
                done += 1
    return tally


def _read_many(kind: str, first: int, last: int, seed: int, folder: Path, results: Path) -> None:
    torch.set_num_threads(1)
    specimen = SPECIMENS[kind]
    folder.mkdir()
    path = specimen.make(folder)
    whole, expected = path.read_bytes(), fingerprint(specimen.read(path))
    _limit_memory()
    signal.signal(signal.SIGALRM, _too_late)
    sys.addaudithook(_heard)
    with results.open("a") as file:
        for index in range(first, last):
            choose = random.Random(f"{seed} {index} {kind}")
            path.write_bytes(damaged(whole, choose))
            if specimen.sign is not None:
                with suppress(Exception):  # it may be too damaged for that
                    specimen.sign(path)
            outcome = _read(specimen, path, expected)
            file.write(json.dumps([index, outcome]) + "\n")
            file.flush()


def _read(specimen: Specimen, path: Path, expected: str) -> str:
    _State.forbidden = ""
    signal.alarm(_SECONDS)
    try:
        found = fingerprint(specimen.read(path))
    except specimen.error as error:
        outcome = REFUSED if path.name in str(error) else "refused without naming the file"
    except _HungError:
        outcome = "hung"
    except BaseException as error:
        outcome = f"another error ({type(error).__name__})"
    else:
        unnoticed = "accepted though damaged" if specimen.digest else ACCEPTED
        outcome = SAME if found == expected else unnoticed
    finally:
        signal.alarm(0)
    return f"ran {_State.forbidden}" if _State.forbidden else outcome


class _State:
    """What an audit hook has heard, which cannot be taken off again."""

    forbidden = ""


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event.startswith(_FORBIDDEN):
        _State.forbidden = event
        raise _CodeError(event)


def _too_late(*_: Any) -> None:
    raise _HungError


def _limit_memory() -> None:
    """More memory than this beyond what the process has already is an error."""
    if not Path("/proc/self/statm").exists():
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
