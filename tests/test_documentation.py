"""Every Python block of README and docs runs, page by page, in order."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(
        r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda p: p.name)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "documentation"}
    for block in blocks(page):
        exec(compile(block, f"{page.name}", "exec"), namespace)


def test_quick_start_learns(tmp_path, monkeypatch):
    """The README's first block is not only runnable: the posterior it makes is a good one."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    exec(blocks(ROOT / "README.md")[0], namespace)
    predictive, labels = namespace["predictive"], namespace["labels"]
    wrong = (predictive.mean.argmax(1) != labels[1500:]).float().mean()
    assert wrong < 0.2  # guessing is wrong nine times in ten
