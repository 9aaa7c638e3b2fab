"""One metric of one study by two settings: a row for each value of one, a column for the other."""

from collections.abc import Sequence

from bbh_studies.columns import METRICS
from bbh_studies.record import Record
from bbh_studies.report.collect import Runs, group_of
from bbh_studies.report.pipe_table import pipe_table
from bbh_studies.report.tables import tied
from bbh_studies.statistic import LEVEL, Statistic


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

    Every row of the study is divided by the setting ``down``. There is a column for each value of
    ``across`` that all these rows have, but for rows with a single value.

    Args:
        records: All records; those of other studies, presets and problems are left out.
        study: Name of the study.
        preset: Name of the preset.
        metric: The metric to show.
        down: A setting with numbers, such as ``units``.
        across: Another one, such as ``temperature``.
        problem: Settings that change what is learnt or measured, such as ``split=validation``.
    """
    group = group_of(records, study, preset, problem)
    if group is None:
        return ""
    by_row: dict[tuple[str, float], dict[float, Statistic]] = {}
    for runs in group.rows:
        statistic = runs.statistic(metric)
        if statistic is not None:
            row = by_row.setdefault((runs.title, _value(runs, down)), {})
            row[_value(runs, across)] = statistic
    shared = set.intersection(*(set(row) for row in by_row.values() if len(row) > 1))
    columns = sorted(shared, reverse=True)
    rows = [
        [f"{title}, {down}={value:g}", *(_cell(row, column, metric) for column in columns)]
        for (title, value), row in sorted(by_row.items(), key=lambda item: item[0])
    ]
    seeds = {one.count for row in by_row.values() for one in row.values()}
    note = (
        f"{METRICS[metric].title}, mean ± standard deviation over {'/'.join(map(str, seeds))} "
        f"seeds. Bold: best of its row, or not told apart from it by Welch's t-test "
        f"(p ≥ {LEVEL:g}).\n"
    )
    titles = ["", *(f"{across}={column:g}" for column in columns)]
    return f"{pipe_table(titles, rows)}\n{note}"


def _value(runs: Runs, setting: str) -> float:
    return float(runs.first.record.config[setting])


def _cell(row: dict[float, Statistic], column: float, metric: str) -> str:
    if column not in row:
        return ""
    one, known = row[column], METRICS[metric]
    text = known.format(one.mean, 2)
    if one.std is not None:
        text += f" ± {known.format(one.std, 2)}"
    best = (min if known.better == "low" else max)(row.values(), key=lambda other: other.mean)
    return f"**{text}**" if len(row) > 1 and tied(one, best, known) else text
