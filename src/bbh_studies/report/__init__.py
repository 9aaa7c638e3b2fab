"""Reports: tables and figures from records, as one HTML page and its Markdown twin."""

from bbh_studies.report.page import findings, markdown_table, write_report
from bbh_studies.report.pivot_table import pivot_table
from bbh_studies.report.training_table import training_table
from bbh_studies.report.uci_table import uci_table
from bbh_studies.report.weight_table import inspection_table

__all__ = [
    "findings",
    "inspection_table",
    "markdown_table",
    "pivot_table",
    "training_table",
    "uci_table",
    "write_report",
]
