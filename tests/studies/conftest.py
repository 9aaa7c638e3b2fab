"""One report of synthetic records for all tests that look at it, and CIFAR-10 in miniature."""

from pathlib import Path

import pytest

from bbh_studies.report import write_report
from studies.report_records import write_records
from studies.tiny_cifar import shrink, write_binary


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page; its records lie in ``runs`` beside it."""
    folder = tmp_path_factory.mktemp("report")
    write_records(folder / "runs")
    return write_report([folder / "runs"], folder / "report.html")


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder with CIFAR-10 in miniature: twenty test images of five classes."""
    shrink(monkeypatch)
    write_binary(tmp_path / "data")
    return tmp_path / "data"
