"""Compiled loops in parts: every place once, whatever the threads and wherever they come from."""

import ctypes
import shlex
from pathlib import Path

import pytest
import torch

from bbh import compiled

pytestmark = pytest.mark.skipif(compiled.compiler() is None, reason="there is no C++ compiler")
# Counts visits of every place, and notes each part's length.
COUNTING = """
extern "C" void count(int64_t* visits, int64_t* lengths,
                      int64_t length, int64_t parts, int64_t threads) {
    in_parts(length, parts, threads, [=](Part part) {
        for (int64_t i = part.first; i < part.last; i++) visits[i]++;
        lengths[part.number] += part.last - part.first;
    });
}
"""


@pytest.fixture(autouse=True)
def _compiling(monkeypatch):
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")


def built() -> ctypes.CDLL:
    library = compiled.compiled(COUNTING, "a test")
    assert library is not None
    library.count.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3
    library.count.restype = None
    return library


@pytest.fixture(scope="module", params=["with OpenMP", "without OpenMP"])
def library(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TORCH_COMPILE_DISABLE", raising=False)
        if request.param == "without OpenMP":
            patch.setenv("CXX", f"sh {shlex.quote(str(refusing(tmp_path_factory.mktemp('bin'))))}")
        yield built()


def refusing(folder: Path) -> Path:
    """A compiler that does not know OpenMP, as that of macOS."""
    script = folder / "compiler"
    real = shlex.join(compiled.compiler() or [])
    script.write_text(
        f'for word in "$@"; do [ "$word" = -fopenmp ] && exit 1; done\nexec {real} "$@"\n'
    )
    return script


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("length", "part"), [(0, 10), (1, 10), (7, 3), (1000, 1), (1003, 10)])
def test_every_place_is_visited_once(library, monkeypatch, length, part, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    division = compiled.divided(length, part)
    visits, lengths = torch.zeros(length, dtype=torch.int64), torch.zeros(division.parts).long()
    library.count(visits.data_ptr(), lengths.data_ptr(), *division)
    assert torch.equal(visits, torch.ones_like(visits))
    assert lengths.sum() == length
    assert lengths.max() - lengths.min() <= 1


def test_parts_do_not_depend_on_threads_and_are_not_too_many(monkeypatch):
    found = set()
    for threads in (1, 2, 64):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        division = compiled.divided(10**9, 10)
        assert division.threads == threads
        found.add(division.parts)
    assert found == {128}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no list of loaded libraries")
def test_loops_bring_no_threads_of_their_own():
    def loaded() -> set[str]:
        words = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
        return {line[5] for line in words if len(line) > 5 and "omp" in Path(line[5]).name}

    before = loaded()
    built()
    assert loaded() == before


def test_code_that_does_not_compile_is_no_error(caplog):
    with caplog.at_level("INFO", "bbh"):
        assert compiled.compiled("this is no C++", "nonsense") is None
    assert "nonsense without a compiled loop" in caplog.text
