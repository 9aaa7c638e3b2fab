"""A strict, seeded world for every test."""

import os
from pathlib import Path

import pytest
import torch

# Two test processes on two cores: more threads would only wait for each other.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def data_dir() -> Path:
    """Real data sets, for tests that measure on them."""
    folder = os.environ.get("BBH_DATA")
    if not folder:
        pytest.skip("set BBH_DATA to a folder with mnist/ in the publishers' format")
    return Path(folder)
