"""A strict, seeded world for every test, the same on every machine."""

import multiprocessing.util
import os
import random
import shutil
import tempfile
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

# Each of these colours what commands print, for people; tests read it.
for _name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE"):
    os.environ.pop(_name, None)

# Processes are started through a socket in a temporary folder. A socket's name has at most 100
# bytes, and the temporary folder's may be longer; this one is remembered by ``multiprocessing``.
_temporary, tempfile.tempdir = tempfile.tempdir, "/tmp" if Path("/tmp").is_dir() else None
multiprocessing.util.get_temp_dir()
tempfile.tempdir = _temporary

# Two test processes on two cores: more threads would only wait for each other.
torch.set_num_threads(1)

# Neither examples that failed in an earlier run nor the machine's speed decide.
hypothesis.settings.register_profile("fresh", database=None, deadline=None, print_blob=True)
hypothesis.settings.load_profile("fresh")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002, what the library's users may draw from


@pytest.fixture(autouse=True)
def _no_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    """Data sets that were fetched into the home folder are not there for tests."""
    monkeypatch.setenv("BBH_CACHE", str(tmp_path_factory.getbasetemp() / "no-cache"))


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch):
    """Nearest neighbours are the same with a C++ compiler and without; it takes a second each time.

    Tests of what is compiled switch it on.
    """
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")


@pytest.fixture
def data_dir() -> Path:
    """Real data sets, for tests that measure on them."""
    folder = os.environ.get("BBH_DATA")
    if not folder:
        pytest.skip("set BBH_DATA to a folder with mnist/ in the publishers' format")
    return Path(folder)


@pytest.fixture(scope="module")
def browser():
    """The system's Chromium, as people open our pages."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no Chromium: apt-get install chromium")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no Playwright: pip install -e '.[dev]'"
    )
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=chromium,
            # Its own sandbox does not start in most containers, and the pages are ours.
            args=["--no-sandbox"],
            # It opens a socket there, whose path may have 107 characters.
            env=os.environ | {"TMPDIR": "/tmp"},
        )
        yield started
        started.close()
