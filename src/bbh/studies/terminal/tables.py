"""Results in a terminal: one row per method, as many columns as there is room for."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from bbh.studies.record import Record
from bbh.studies.run import Run

_TITLES = {
    "map": "MAP",
    "ensemble": "Deep ensemble",
    "bbb": "Bayes by Backprop",
    "dropout": "MC dropout",
    "mnf": "MNF",
    "bbh": "Bayes by Hypernet",
    "nuts": "NUTS",
}


@dataclass(frozen=True)
class Column:
    """A metric as a terminal shows it."""

    title: str
    metric: str
    decimals: int

    def cell(self, values: Sequence[float]) -> str:
        """The mean, and with several seeds the standard deviation over them.

        >>> Column("NLL", "nll", 2).cell([0.1]), Column("NLL", "nll", 2).cell([0.1, 0.2, 0.3])
        ('0.10', '0.20±0.10')
        """
        if not values:
            return ""
        mean = f"{statistics.fmean(values):.{self.decimals}f}"
        if len(values) == 1:
            return mean
        return f"{mean}±{statistics.stdev(values):.{self.decimals}f}"


# The most important first: a narrow terminal leaves out the last ones.
_CLASSIFICATION = (
    Column("err %", "error", 2),
    Column("NLL", "nll", 3),
    Column("AUC in", "entropy_auc", 3),
    Column("AUC out", "outlier_entropy_auc", 3),
    Column("AUROC", "ood_auroc", 3),
    Column("ECE", "ece", 3),
    Column("sec", "seconds", 1),
    Column("Brier", "brier", 3),
    Column("AUPR", "ood_aupr", 3),
    Column("AUROC MI", "ood_auroc_mi", 3),
)
_TOY = (
    Column("RMSE", "rmse", 1),
    Column("NLL", "nll", 3),
    Column("to NUTS", "distance_to_nuts", 1),
    Column("cover in", "coverage_inside", 2),
    Column("cover out", "coverage_outside", 2),
    Column("sec", "seconds", 1),
    Column("NLL out", "nll_outside", 2),
    Column("RMSE in", "rmse_inside", 1),
)
_EXPLAINED = (
    "AUC: area under the distribution of the predictive entropy, in: high is good, out: low is "
    "good. AUROC: how well entropy tells outliers from data; 0.5 is chance."
)
_TOY_EXPLAINED = (
    "RMSE: of the mean to x³ on [−6, 6]. To NUTS: Wasserstein distance of the functions to the "
    "exact posterior's. Cover: share of x³ within the functions' central 95 %, among the data and "
    "beyond them."
)


def title(variant: str) -> str:
    """A row's name for people; rows of ablations are called as on the command line."""
    return _TITLES.get(variant, variant)


def run_title(run: Run) -> str:
    """A run's name for people."""
    return f"{title(run.variant)}, seed {run.seed}"


def headline(record: Record) -> str:
    """The most important numbers of a run on one line."""
    parts: list[str] = []
    for column in _columns(record.study)[:2]:
        name, percent, _ = column.title.partition(" %")
        parts.append(f"{name} {column.cell([record.metrics[column.metric]])}{percent}")
    return ", ".join(parts)


def results_table(records: Sequence[Record], console: Console) -> Table:
    """One row per variant, means over its seeds; columns that do not fit are left out."""
    columns = [
        column
        for column in _columns(records[0].study)
        if any(column.metric in record.metrics for record in records)
    ]
    table = _table(records, columns)
    # Measured as if there were room for everything: a measurement never exceeds its options.
    roomy = console.options.update(max_width=1000)
    while len(columns) > 1 and console.measure(table, options=roomy).maximum > console.width:
        columns = columns[:-1]
        table = _table(records, columns)
    return table


def explanation(study: str) -> str:
    """What the table's columns mean."""
    return _TOY_EXPLAINED if study == "toy" else _EXPLAINED


def _columns(study: str) -> Sequence[Column]:
    return _TOY if study == "toy" else _CLASSIFICATION


def _table(records: Sequence[Record], columns: Sequence[Column]) -> Table:
    first = records[0]
    seeds = len({record.seed for record in records})
    heading = f"{first.study}, preset {first.preset}"
    table = Table(title=heading + (f", mean ± standard deviation of {seeds} seeds" * (seeds > 1)))
    table.add_column("method" if first.variant in _TITLES else "variant", no_wrap=True)
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    for variant in dict.fromkeys(record.variant for record in records):
        metrics = [record.metrics for record in records if record.variant == variant]
        cells = [
            column.cell([one[column.metric] for one in metrics if column.metric in one])
            for column in columns
        ]
        table.add_row(title(variant), *cells)
    return table
