"""Fills the tables of README and docs from the committed records: ``make tables``.

Between ``<!-- table: mnist corrected -->`` and ``<!-- /table -->`` comes the table of that study
and preset, or with ``<!-- table: toy corrected noise_scale=3 -->`` that of another problem; after
``<!-- bench: bench-cpu side-by-side lenet -->`` that part of a benchmark, after
``<!-- estimators: bias -->`` that table of the estimator card, after
``<!-- inspections: digits corrected mnf bbh -->`` what was seen in those rows' posteriors, after
``<!-- training: mnist-attacks corrected -->`` how long that study's runs trained, after
``<!-- uci: defaults -->`` the tables of the UCI study, after
``<!-- pivot: uci defaults nll units temperature dataset=boston split=validation -->`` one metric by
two settings, after ``<!-- faults: campaign -->`` what came of ``make test-faults``.
With ``--check`` nothing is written, and a file out of date is an error.
"""

import re
import sys
from functools import partial
from pathlib import Path

from bbh.files import read_json
from bbh_studies.bench.document_tables import bench_table, estimator_table
from bbh_studies.record import FILE_NAME, Record
from bbh_studies.report import (
    inspection_table,
    markdown_table,
    pivot_table,
    training_table,
    uci_table,
)

ROOT = Path(__file__).parent.parent
_KINDS = "table|pivot|bench|estimators|inspections|training|uci|faults"
_BLOCK = re.compile(rf"(<!-- ({_KINDS}): (.+?) -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def main(root: Path = ROOT, *, check: bool = False) -> int:
    """Returns the number of files that were (or, when checking, are) out of date."""
    records = [Record.read(path) for path in sorted((root / "results").rglob(FILE_NAME))]
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    texts = {page: page.read_text(encoding="utf-8") for page in pages if page.exists()}
    marked = [page for page, text in texts.items() if _BLOCK.search(text)]
    print(f"{len(records)} records, {len(marked)} files with tables.")
    stale = 0
    for page in marked:
        filled = _BLOCK.sub(lambda block: _filled(block, records, root / "results"), texts[page])
        if filled != texts[page]:
            stale += 1
            name = page.relative_to(root)
            print(f"{name} is out of date: make tables" if check else f"{name} written")
            if not check:
                page.write_text(filled, encoding="utf-8")
    return stale


def _filled(block: re.Match[str], records: list[Record], results: Path) -> str:
    start, kind, words, end = block.groups()
    make = {
        "table": partial(markdown_table, records),
        "pivot": partial(pivot_table, records),
        "bench": partial(bench_table, records),
        "estimators": partial(estimator_table, records),
        "inspections": partial(inspection_table, results),
        "training": partial(training_table, records),
        "uci": partial(uci_table, records),
        "faults": partial(_fault_table, results),
    }[kind]
    table = make(*words.split())
    # Without records there is nothing to say: what stands there stays.
    return f"{start}\n{table}\n{end}" if table else block.group()


def _fault_table(results: Path, name: str) -> str:
    """What came of every campaign that ``python -m faults --record`` kept, and where it ran."""
    path = results / "faults" / f"{name}.json"
    if not path.exists():
        return ""
    record = read_json(path)
    lines = ["| campaign | tried | promises broken | outcomes |", "|---|---:|---:|---|"]
    for one in record["campaigns"]:
        seen = ", ".join(f"{number:,} {outcome}" for outcome, number in one["outcomes"].items())
        tried = sum(one["outcomes"].values())
        lines.append(f"| {one['name']} | {tried:,} | {len(one['broken'])} | {seen} |")
    minutes = record["seconds"] / 60
    lines += [
        "",
        f"Seed {record['seed']}, {minutes:.0f} minutes on {record['hardware']['cores']} cores with "
        f"a mean load of {record['load']}, PyTorch {record['versions']['torch']}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    checking = sys.argv[1:] == ["--check"]
    number = main(check=checking)
    sys.exit(1 if checking and number else 0)
