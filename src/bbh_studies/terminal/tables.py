"""Results in a terminal: one row per method, as many columns as there is room for."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bbh_studies.columns import METRICS
from bbh_studies.metric import Metric
from bbh_studies.record import Record
from bbh_studies.statistic import Statistic
from bbh_studies.studies import STUDIES, row_title

# The most important first: a narrow terminal leaves out the last ones.
_COLUMNS = (
    "error",
    "hmc_agreement",
    "hmc_total_variation",
    "rmse",
    "test_rmse",
    "pgd_mean_accuracy",
    "fgsm_mean_accuracy",
    "legacy_mean_accuracy",
    "pgd_auroc",
    "fgsm_auroc",
    "nll",
    "crps",
    "coverage_95",
    "distance_to_nuts",
    "coverage_inside",
    "coverage_outside",
    "entropy_auc",
    "outlier_entropy_auc",
    "ood_auroc",
    "ece",
    "seconds",
    "nll_outside",
    "rmse_inside",
    "brier",
    "ood_aupr",
    "ood_auroc_mi",
)
# Digits after the point: enough to tell methods apart.
_MOST_DECIMALS = 3


def headline(record: Record) -> str:
    """The most important numbers of a run on one line."""
    return ", ".join(
        f"{column.short or column.title} {_cell(column, [record])}{_percent(column)}"
        for column in _columns([record])[:2]
    )


def results_tables(records: Sequence[Record], console: Console) -> list[Table]:
    """One table, or one for every part of the study."""
    parts = {index: _part(record) for index, record in enumerate(records)}
    return [
        results_table([records[i] for i, own in parts.items() if own == part], console)
        for part in dict.fromkeys(parts.values())
    ]


def results_table(records: Sequence[Record], console: Console) -> Table:
    """One row per variant, means over its seeds; columns that do not fit are left out."""
    columns = _columns(records)
    table = _table(records, columns)
    # Measured with ample room, since rich never reports a width above the one it is given.
    roomy = console.options.update(max_width=1000)
    while len(columns) > 1 and console.measure(table, options=roomy).maximum > console.width:
        columns = columns[:-1]
        table = _table(records, columns)
    return table


def _part(record: Record) -> tuple[str, ...]:
    return STUDIES[record.study].part_of(record.config) if record.study in STUDIES else ()


def _columns(records: Sequence[Record]) -> list[Metric]:
    return [METRICS[name] for name in _COLUMNS if any(name in one.metrics for one in records)]


def _table(records: Sequence[Record], columns: Sequence[Metric]) -> Table:
    first = records[0]
    seeds = len({record.seed for record in records})
    heading = ", ".join([first.study, *_part(first), f"preset {first.preset}"])
    table = Table(title=heading + (f", mean ± standard deviation of {seeds} seeds" * (seeds > 1)))
    # Names may break: where there is room for one number only, they would be cut otherwise.
    table.add_column("method" if first.variant == first.method else "variant", overflow="fold")
    for column in columns:
        title = f"{column.short or column.title}{_percent(column)}"
        table.add_column(title, justify="right", no_wrap=True)
    for variant in dict.fromkeys(record.variant for record in records):
        row = [record for record in records if record.variant == variant]
        table.add_row(row_title(first.study, variant), *(_cell(column, row) for column in columns))
    return table


def _cell(column: Metric, records: Sequence[Record]) -> str:
    """The mean, and with several seeds the standard deviation over them."""
    values = [one.metrics[column.name] for one in records if column.name in one.metrics]
    if not values:
        return ""
    found = Statistic.of(values)
    mean = column.format(found.mean, _MOST_DECIMALS)
    return mean if found.std is None else f"{mean}±{column.format(found.std, _MOST_DECIMALS)}"


def _percent(column: Metric) -> str:
    """The unit, if it is per cent: there is no room for others."""
    return " %" if column.unit == "%" else ""
