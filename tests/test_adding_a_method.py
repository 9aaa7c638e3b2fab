"""docs/adding-a-method.md is true: a file and a line add a method, and everything works for it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "adding-a-method.md").read_text()
NAME = "stochastic_weight_averaging"


def marked(kind: str) -> tuple[str, str]:
    """Path and content of the block that the page marks as a file, or as a line of one."""
    found = re.search(rf"<!-- {kind}: (\S+) -->\n\n```\w+\n(.*?)^```", PAGE, re.S | re.M)
    assert found, f"the page has no {kind}"
    return found[1], found[2]


@pytest.fixture(scope="module")
def house(tmp_path_factory) -> Path:
    """The sources without the method, and then with what the page adds to them."""
    folder = tmp_path_factory.mktemp("house")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    file, code = marked("file")
    contents, line = marked("line")
    (folder / file).unlink()
    lines = (folder / contents).read_text()
    assert line in lines
    (folder / contents).write_text(lines.replace(line, ""))
    assert run(folder, "-c", f"import bbh; print({NAME!r} in bbh.methods.registered())") == "False"
    (folder / file).write_text(code)
    (folder / contents).write_text(lines)
    return folder


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "src"), "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_the_page_shows_the_file_as_it_is():
    file, code = marked("file")
    assert (ROOT / file).read_text() == code


def test_fit_predict_save_load_inspect_and_attack(house):
    *_, example = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)
    found = run(house, "-c", example + "\nprint(bbh.__file__)")
    assert found.endswith(str(Path("src") / "bbh" / "__init__.py"))
    assert str(house) in found
    assert "sign of collapse" in found


@pytest.mark.slow
def test_contract_tests_find_it(house):
    # On one network here; the suite itself runs it on all of them.
    chosen, test = (
        f"{NAME} and mlp and (cost or save)",
        str(ROOT / "tests" / "methods" / "test_contract.py"),
    )
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", str(ROOT / "pyproject.toml")]
    found = run(house, "-m", "pytest", *options, "-k", chosen, test)
    assert re.search(r"\b[1-9]\d* passed", found), found


@pytest.mark.slow
def test_benchmark_finds_it(house):
    found = run(
        house, "-m", "bbh_studies", "bench", "cpu", "--quick", "--no-scaling", "--only", NAME
    )
    assert NAME in found
