"""The page: one self-contained HTML file, and a Markdown twin with the same numbers."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bbh.files import atomic_path
from bbh.version import __version__
from bbh_studies.columns import METRICS, ordered
from bbh_studies.record import Record
from bbh_studies.report import robustness, summary
from bbh_studies.report.collect import Entry, Group, collect, group, group_of
from bbh_studies.report.published import Published, published
from bbh_studies.report.reproduce import Origin, origins
from bbh_studies.report.tables import Mark, Table, build_table
from bbh_studies.statistic import LEVEL

_EXTRA = "reports need more packages: pip install 'bayes-by-hypernet[studies]'"
PAPER = "https://arxiv.org/abs/1711.01297"
_PRESETS = {
    "paper": "as the paper describes its runs",
    "legacy": "as the paper's code ran",
    "corrected": "with the estimator and the training corrected",
    "defaults": "with the defaults of the library",
}


@dataclass(frozen=True)
class Section:
    """One study under one preset, ready for a template."""

    group: Group
    paper: Published
    table: Table
    further: Table
    origins: list[Origin]
    findings: list[str]
    against_paper: str
    caveats: list[str]
    provenance: str

    @property
    def anchor(self) -> str:
        """Target of links, unique to the section."""
        return slug(f"{self.group.study}-{self.group.preset_title}")

    @property
    def preset_words(self) -> str:
        """What the preset means; empty if it is not a known one."""
        return _PRESETS.get(self.group.preset, "")

    @property
    def several_seeds(self) -> bool:
        """Whether figures show only a part of the runs."""
        return any(len(runs.entries) > 1 for runs in self.group.rows)


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Writes a report of every record below the folders.

    Args:
        folders: Searched for ``record.json``, at any depth.
        out: The HTML file; the Markdown twin lies beside it with the suffix ``.md``.

    Returns:
        The HTML file's path.

    Raises:
        RecordError: There is no record, or one cannot be read.
    """
    environment = _environment()
    groups = collect(folders)
    sections = [_section(one) for one in groups]
    context = _context(sections)
    markdown = environment.get_template("template.md.j2").render(context)
    page = environment.get_template("template.html.j2").render(
        context,
        figures={section.anchor: _figures(section) for section in sections},
        play=_playground(groups),
    )
    for path, text in ((out.with_suffix(".md"), markdown), (out, page)):
        with atomic_path(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return out


def markdown_table(records: Sequence[Record], study: str, preset: str, *problem: str) -> str:
    """The main table of one study as Markdown, for README and docs; empty without records.

    Args:
        records: All records; those of other studies, presets and problems are left out.
        study: Name of the study.
        preset: Name of the preset.
        problem: Settings that change what is learnt or measured, such as ``noise_scale=3``.
    """
    rows = group_of(records, study, preset, problem)
    if rows is None:
        return ""
    template = _environment().get_template("table.md.j2").module
    section = _section(rows)
    text: Any = template.table(section.table)  # pyright: ignore[reportAttributeAccessIssue]
    # Settings that the marker of the table names need not be repeated below it.
    changed = [_markdown_text(one) for one in rows.shared if one not in problem]
    note = f" In all rows {', '.join(changed)}." if changed else ""
    noise = summary.search_noise(rows, section.table)
    return str(text).strip() + f"{note}{' ' if noise else ''}{noise}\n"


def findings(records: Sequence[Record]) -> list[str]:
    """What the records of one study and preset say, a sentence for each finding."""
    return [
        text
        for one in group([Entry(record) for record in records])
        for text in _section(one).findings
    ]


def slug(text: str) -> str:
    """A name for anchors.

    >>> slug("Shared, d = 1")
    'shared-d-1'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "study"


def _section(group: Group) -> Section:
    # Results on other data, such as validation images, are not those that the paper printed.
    paper = Published("", {}) if group.problem else published(group.study)
    table = build_table(group, paper, main=True)
    return Section(
        group=group,
        paper=paper,
        table=table,
        further=build_table(group, paper, main=False),
        origins=origins(group),
        findings=[*filter(None, [robustness.verdict(table)]), *summary.findings(table)],
        against_paper=summary.against_paper(table),
        caveats=summary.caveats(group, table),
        provenance=summary.provenance(group),
    )


def _context(sections: Sequence[Section]) -> dict[str, Any]:
    tables = [table for section in sections for table in (section.table, section.further)]
    used = {column.name for table in tables for column in table.columns}
    return {
        "sections": sections,
        "metrics": [METRICS[name] for name in ordered(used & METRICS.keys(), METRICS)],
        "marks": [mark for mark in Mark if any(mark in table.marks for table in tables)],
        "has_best": any(
            cell.best for table in tables for row in table.rows for cell in row.cells if cell
        ),
        "level": LEVEL,
        "num_records": sum(len(section.group.records) for section in sections),
        "version": __version__,
        "paper": PAPER,
    }


def _figures(section: Section) -> dict[str, Any]:
    # Imported here so that tables need no Matplotlib.
    try:
        from bbh_studies.report import (
            attack_figures,
            examples,
            figures,
            toy_figures,
            weight_figures,
        )
    except ImportError as error:
        raise ImportError(f"{_EXTRA} ({error})") from error
    return {
        "panels": toy_figures.panels(section.group),
        "curves": figures.curves(section.group, section.table, section.paper),
        "attacks": attack_figures.panels(section.group),
        "series": examples.series(section.group),
        "galleries": examples.galleries(section.group),
        "inspections": weight_figures.inspections(section.group),
    }


def _playground(groups: Sequence[Group]) -> Any:
    # Imported here for the same reason.
    from bbh_studies.report.playground import playground

    return playground(groups)


def _environment() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(f"{_EXTRA} ({error})") from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bbh_studies.report", "."),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = _markdown_text
    environment.filters["code"] = _markdown_code
    return environment


def _markdown_text(text: object) -> str:
    """Escapes text so that Markdown shows it as it is: on one line, in a table, without HTML."""
    escaped = html.escape(" ".join(str(text).split()), quote=False)
    escaped = re.sub(r"([\\|`*_\[\]#~])", r"\\\1", escaped)
    # What begins a line may begin a list.
    return re.sub(r"^(\d*)([-+.)])", r"\1\\\2", escaped)


def _markdown_code(text: object) -> str:
    """Text to put between backticks, which nothing in it must end."""
    return " ".join(str(text).replace("`", "'").split())
