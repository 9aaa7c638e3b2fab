"""One metric of one study by its settings: some have rows, and one has columns."""

from collections.abc import Sequence

from bbh_studies.columns import METRICS
from bbh_studies.record import Record
from bbh_studies.report.collect import group_of
from bbh_studies.report.pipe_table import pipe_table
from bbh_studies.report.tables import tied
from bbh_studies.statistic import LEVEL, Statistic
from bbh_studies.studies import find_study


def pivot_table(
    records: Sequence[Record],
    study: str,
    preset: str,
    metric: str,
    down: str,
    across: str,
    *problem: str,
) -> str:
    """Mean and standard deviation of a metric over seeds, in Markdown; empty without records.

    Every row of the study is divided by the settings ``down``. There is a column for each value of
    ``across`` that all these rows have, but for rows with a single value.

    Args:
        records: All records; those of other studies, presets and problems are left out.
        study: Name of the study.
        preset: Name of the preset.
        metric: The metric to show.
        down: Settings with numbers, such as ``units,layers``.
        across: Another one, such as ``temperature``.
        problem: Settings that change what is learnt or measured, such as ``split=validation``.
    """
    group, names = group_of(records, study, preset, problem), down.split(",")
    if group is None:
        return ""
    by_row: dict[tuple[str, tuple[float, ...]], dict[float, Statistic]] = {}
    for runs in group.rows:
        statistic = runs.statistic(metric)
        if statistic is not None:
            settings = find_study(study).restored(runs.first.record.config).flat
            values = tuple(float(settings[name]) for name in names)
            by_row.setdefault((runs.title, values), {})[float(settings[across])] = statistic
    shared = set.intersection(*(set(row) for row in by_row.values() if len(row) > 1))
    columns = sorted(shared, reverse=True)
    rows = [
        [_title(title, names, values), *_cells([row.get(column) for column in columns], metric)]
        for (title, values), row in sorted(by_row.items(), key=lambda item: item[0])
        if shared & row.keys()
    ]
    seeds = sorted({one.count for row in by_row.values() for one in row.values()})
    note = (
        f"{METRICS[metric].title}, mean ± standard deviation over {' or '.join(map(str, seeds))} "
        f"seeds. Bold: best of its row, or not told apart from it by Welch's t-test "
        f"(p ≥ {LEVEL:g}).\n"
    )
    titles = ["", *(f"{across}={column:g}" for column in columns)]
    return f"{pipe_table(titles, rows)}\n{note}"


def _title(title: str, names: Sequence[str], values: Sequence[float]) -> str:
    settings = (f"{name}={value:g}" for name, value in zip(names, values, strict=True))
    return ", ".join([title, *settings])


def _cells(row: Sequence[Statistic | None], name: str) -> list[str]:
    metric = METRICS[name]
    known = [one for one in row if one is not None]
    best = (min if metric.better == "low" else max)(known, key=lambda one: one.mean)
    texts: list[str] = []
    for one in row:
        text = "" if one is None else metric.format(one.mean, 2)
        if one is not None and one.std is not None:
            text += f" ± {metric.format(one.std, 2)}"
        bold = one is not None and len(known) > 1 and tied(one, best, metric)
        texts.append(f"**{text}**" if bold else text)
    return texts
