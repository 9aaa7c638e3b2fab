"""The tutorials: notebooks that run, with outputs that anybody may see."""

import ast
import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

DOCS = Path(__file__).parent.parent / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.ipynb"))
FIRST = "first-uncertainty"
LARGEST = 150_000
# A folder of somebody's machine, in the ways that systems write it.
ABSOLUTE = re.compile(r"(?<![\w.:/<])/(?:home|root|tmp|usr|work|Users|var|opt|mnt)/|\b[A-Z]:\\\\")
NEEDED = {"text": ("transformers",)}

every_tutorial = pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [one for cell in notebook.cells for one in cell.get("outputs", [])]


def runner() -> ModuleType:
    """docs/run_tutorials.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("run_tutorials", DOCS / "run_tutorials.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_tutorials():
    assert FIRST in [path.stem for path in TUTORIALS]


@every_tutorial
def test_it_is_a_small_notebook_that_was_run_once_from_top_to_bottom(path):
    assert path.stat().st_size < LARGEST
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].source.startswith("# ")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in code:
        ast.parse(cell.source)
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


@every_tutorial
def test_its_outputs_have_pictures_and_neither_errors_nor_warnings_nor_folders(path):
    shown = outputs(nbformat.read(path, as_version=4))
    assert any("image/png" in one.get("data", {}) for one in shown)
    assert [one for one in shown if one.output_type == "error"] == []
    assert [one.text for one in shown if one.get("name") == "stderr"] == []
    texts = [one.get("text", "") for one in shown]
    texts += [text for one in shown for text in one.get("data", {}).values()]
    assert [text for text in texts if "Warning" in text] == []
    assert ABSOLUTE.findall(path.read_text(encoding="utf-8")) == []


@every_tutorial
def test_the_site_and_the_list_have_it(path):
    assert f"tutorials/{path.stem}.md" in (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert f"({path.name})" in (DOCS / "tutorials" / "index.md").read_text(encoding="utf-8")


@pytest.mark.slow
@every_tutorial
def test_it_runs(path, tmp_path):
    for package in NEEDED.get(path.stem, ()):
        pytest.importorskip(package, reason=f"{path.name} is about {package}: pip install it")
    copy = Path(shutil.copy(path, tmp_path))
    notebook = runner().executed(copy, tmp_path)
    assert [one.text for one in outputs(notebook) if one.get("name") == "stderr"] == []
