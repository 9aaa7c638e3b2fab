"""One report of synthetic records for all tests that look at it."""

from pathlib import Path

import pytest

from bbh.studies.report import write_report
from studies.report_records import write_records


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page; its records lie in ``runs`` beside it."""
    folder = tmp_path_factory.mktemp("report")
    write_records(folder / "runs")
    return write_report([folder / "runs"], folder / "report.html")
