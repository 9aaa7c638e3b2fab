"""How long runs trained, as a table for documents."""

from collections.abc import Sequence

from bbh_studies.columns import ordered
from bbh_studies.record import Record
from bbh_studies.report.collect import problem_of
from bbh_studies.report.pipe_table import pipe_table
from bbh_studies.studies import row_title, row_titles

_TITLES = ["", "epochs", "steps", "training [s]", "a step [ms]"]


def training_table(records: Sequence[Record], study: str, preset: str) -> str:
    """Wall time of the epochs in each row's history, seed 0, in Markdown; empty without records.

    It leaves out the time before the first epoch and after the last, and that of a warm start.
    """
    wanted = (study, preset, 0)
    chosen = {
        one.variant: one
        for one in records
        if (one.study, one.preset, one.seed) == wanted and not problem_of(one)
    }
    if not chosen:
        return ""
    rows: list[list[str]] = []
    whole = 0.0
    for variant in ordered(chosen, row_titles(study)):
        history = chosen[variant].history
        steps = history[-1]["step"]
        seconds = sum(epoch["seconds"] for epoch in history)
        times = [f"{seconds:.1f}", f"{1e3 * seconds / steps:.2f}"]
        rows.append([row_title(study, variant), str(len(history)), f"{steps:,}", *times])
        whole += seconds
    rows.append(["all", "", "", f"{whole:.1f}", ""])
    return pipe_table(_TITLES, rows)
