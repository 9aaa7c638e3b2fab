"""Reports: tables and figures from records, as one HTML page and its Markdown twin."""

from bbh.studies.report.page import markdown_table, write_report

__all__ = ["markdown_table", "write_report"]
