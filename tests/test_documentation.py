"""Every Python block of README and docs runs, page by page, in order."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
# The page on everything is run with `make test`, all others with `make test-docs`.
FIRST = "whole-library.md"
# Packages of the extras that pages are about.
NEEDED = {
    "deploying.md": ("onnxscript", "onnxruntime"),
    "hugging-face.md": ("transformers", "accelerate"),
    "lightning.md": ("lightning",),
}


def blocks(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    # A block that shows a file of the library is checked by tests/test_adding_a_method.py.
    text = re.sub(r"^<!-- file: .*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run_blocks(page: Path) -> dict[str, object]:
    """What the names of a page's code stand for at its end."""
    namespace: dict[str, object] = {"__name__": "documentation"}
    for block in blocks(page):
        exec(compile(block, page.name, "exec"), namespace)
    return namespace


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=() if page.name == FIRST else pytest.mark.slow)
        for page in PAGES
        if blocks(page)
    ],
)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    for package in NEEDED.get(page.name, ()):
        pytest.importorskip(package, reason=f"{page.name} is about {package}: pip install it")
    monkeypatch.chdir(tmp_path)
    run_blocks(page)


def test_quick_start_learns(tmp_path, monkeypatch):
    """README's blocks are not only runnable: the posterior of the first is a good one."""
    monkeypatch.chdir(tmp_path)
    namespace = run_blocks(README)
    predictive, labels = namespace["predictive"], namespace["labels"]
    wrong = (predictive.mean.argmax(1) != labels[1500:]).float().mean()
    assert wrong < 0.2  # guessing is wrong nine times in ten
