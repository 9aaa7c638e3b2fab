"""Checks what README, docs and tutorials say about results: ``python docs/claims.py``, as tests do.

Every ``<!-- claim: … -->`` is recomputed from the committed records; ``bbh_studies.report.claims``
explains how one is written. On pages with tables of studies a sentence with a word such as *best*,
*fewer* or *worse* must be followed by such a comment, or by ``<!-- no claim -->`` if it compares no
results.
"""

import json
import re
import sys
from pathlib import Path

from bbh_studies.record import FILE_NAME, Record
from bbh_studies.report.claim_rows import ClaimError, NamedTables
from bbh_studies.report.claims import check_claim

ROOT = Path(__file__).parent.parent
_CLAIM = re.compile(r"<!--\s+claim:\s(.*?)\s-->", re.DOTALL)
_COMMENT = re.compile(r"<!--\s+(?:claim:\s.*?|no\s+claim)\s+-->", re.DOTALL)
# Here Markdown would end the paragraph.
_AT_LINE_START = re.compile(r"(?<=[^\n]\n)\s*<!--\s+(?:claim:|no claim)")
_TABLE = re.compile(r"<!-- (table|pivot|uci): .*?<!-- /\1 -->", re.DOTALL)
_CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
# Paragraphs, items of lists, and lines that are no prose: tables, headings, pictures.
_BLOCK = re.compile(r"\n\s*\n|\n(?=[-*] )|\n(?=\|)")
_NOT_PROSE = ("|", "#", "!")
_SENTENCE = re.compile(r"(?<=[.!?])[)*]*\s+")
_COMPARING = re.compile(
    r"\b(best|better|worst|worse|lowest|highest|fewest|fewer|(?<!at )least|closest|closer|surest"
    r"|surer|slowest|slower|fastest|faster|smallest|beats?|behind|ahead|the most|most errors"
    r"|more errors|more robust|(as|so) (few|little|many|well) as|told apart)\b",
    re.IGNORECASE,
)


def main(root: Path = ROOT) -> int:
    """Prints what is wrong, a line for each mistake, and returns their number."""
    records = [Record.read(path) for path in sorted((root / "results").rglob(FILE_NAME))]
    tables = NamedTables(records)
    mistakes = 0
    docs = root / "docs"
    tutorials = sorted((docs / "tutorials").glob("*.ipynb"))
    for page in [root / "README.md", *sorted(docs.glob("*.md")), *tutorials]:
        text = _words_of(page)
        found = [*false_claims(text, tables), *unclaimed(text), *misplaced(text)]
        for line in found:
            print(f"{page.relative_to(root)}: {line}")
        mistakes += len(found)
    return mistakes


def _words_of(page: Path) -> str:
    """The text of a page, or of a notebook's cells that are not code."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(one["source"]) for one in cells if one["cell_type"] == "markdown")


def false_claims(text: str, tables: NamedTables) -> list[str]:
    """The claims of a page that its tables do not bear out, and why."""
    found: list[str] = []
    for claim in _CLAIM.findall(text):
        try:
            found += check_claim(claim, tables)
        except ClaimError as error:
            found.append(str(error))
    return found


def misplaced(text: str) -> list[str]:
    """Comments that begin a line within a paragraph, which would end the paragraph."""
    lines = [text[: one.start()].count("\n") + 1 for one in _AT_LINE_START.finditer(text)]
    return [f"line {line} begins with a claim: let a word come first." for line in lines]


def unclaimed(text: str) -> list[str]:
    """Sentences of a page that compare and are followed by no comment.

    Pages without a table of a study are not looked at.
    """
    if not _TABLE.search(text):
        return []
    found: list[str] = []
    for block in _BLOCK.split(_CODE.sub("", _TABLE.sub("\n\n", text))):
        if block.lstrip().startswith(_NOT_PROSE):
            continue
        *before, last = _COMMENT.split(block)
        # A comment stands for the one sentence before it.
        sentences = [one for part in before for one in _SENTENCE.split(part.strip())[:-1]]
        sentences += _SENTENCE.split(last)
        for sentence in (" ".join(one.split()) for one in sentences):
            if word := _COMPARING.search(sentence):
                found.append(f"“{word.group()}” without a claim: {sentence}")
    return found


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
