"""Tables for documents, made from the records of benchmarks."""

from collections.abc import Sequence

from bbh_studies.bench.large import STUDIES
from bbh_studies.bench.scaling import AXES
from bbh_studies.bench.targets import TARGETS
from bbh_studies.columns import ordered
from bbh_studies.record import Record
from bbh_studies.report.pipe_table import pipe_table
from bbh_studies.settings.methods import METHODS

# The columns of each part's table: title → metric and scale. Times are shown with half the
# distance between their quartiles.
_TIMES = {
    "step [ms]": ("step_ms", 1.0),
    "prediction [ms]": ("predict_ms", 1.0),
    "parameters [million]": ("parameters", 1e-6),
    "memory of a step [MB]": ("training_bytes", 1e-6),
    "memory of a prediction [MB]": ("predict_bytes", 1e-6),
}
_COLUMNS = {
    "side-by-side": _TIMES,
    "scaling": _TIMES,
    "floor": {
        "step [ms]": ("step_ms", 1.0),
        "bytes at least [GB]": ("floor_bytes", 1e-9),
        "those per second [TB/s]": ("tb_per_s", 1.0),
        "times the floor": ("step_over_floor", 1.0),
        "memory of a step [GB]": ("training_bytes", 1e-9),
    },
}
_LARGE = {
    "step [ms]": ("step_ms", 1.0),
    "built in [s]": ("build_s", 1.0),
    "parameters [million]": ("parameters", 1e-6),
    "memory of a step [GB]": ("memory_bytes", 1e-9),
}
# The columns of the estimator card: title → metric. The noise is shown for two of the targets.
_NOISE = {
    "spread": "spread",
    "gradient by log scale": "scale_gradient",
    "gradient by a draw": "draw_gradient",
}
ESTIMATOR_TABLES = {
    "bias": {target.title: f"{key}_bias" for key, target in TARGETS.items()},
    "noise": {
        **{
            f"{TARGETS[key].title}: {title}": f"{key}_{metric}"
            for key in ("prior", "two_modes")
            for title, metric in _NOISE.items()
        },
        "time [ms]": "estimate_ms",
    },
}


def bench_table(records: Sequence[Record], study: str, part: str, problem: str = "") -> str:
    """One part of a benchmark in Markdown; empty where there is no record of it.

    Args:
        records: Records of all studies and benchmarks.
        study: bench-cpu, bench-gpu, bench-large or bench-large-cpu.
        part: side-by-side, scaling, floor or headline.
        problem: The network of side-by-side rows.
    """
    chosen = [
        one
        for one in records
        if (one.study, one.preset) == (study, part)
        and (part == "headline" or not problem or one.config.get("problem") == problem)
    ]
    if not chosen:
        return ""
    if part == "headline":
        rows = [
            [f"`{name}`", f"{value:.3g}"]
            for name, value in chosen[0].metrics.items()
            if not name.endswith(("_q1", "_q3"))
        ]
        return pipe_table(["measure", "value"], rows)
    columns = _LARGE if study in STUDIES.values() else _COLUMNS[part]
    used = {
        title: column
        for title, column in columns.items()
        if any(column[0] in one.metrics for one in chosen)
    }
    methods = ordered((one.method for one in chosen), METHODS)
    if part == "side-by-side":
        chosen.sort(key=lambda one: (methods.index(one.method), one.metrics.get("step_ms", 0.0)))
    elif part == "floor":
        chosen.sort(key=lambda one: -one.metrics["step_ms"])
    elif part == "scaling":
        chosen.sort(key=lambda one: _place(one.variant))
    rows = [[_name(one), *(_cell(one, *column) for column in used.values())] for one in chosen]
    return pipe_table(["", *used], rows)


def estimator_table(records: Sequence[Record], part: str) -> str:
    """One table of the estimator card in Markdown; empty where there are no records.

    Args:
        records: Records of all studies and benchmarks.
        part: bias, or noise for spread, gradients and time.
    """
    chosen = [one for one in records if one.study == "bench-estimators"]
    if not chosen:
        return ""
    chosen.sort(key=lambda one: one.config["row"])
    columns = ESTIMATOR_TABLES[part]
    rows = [
        [one.config["title"], *(_card_cell(one, metric) for metric in columns.values())]
        for one in chosen
    ]
    if part == "bias":
        rows.insert(0, ["true KL", *(f"{target.kl:.2f}" for target in TARGETS.values())])
    return pipe_table(["", *columns], rows)


def _card_cell(record: Record, metric: str) -> str:
    value = record.metrics.get(metric)
    if value is None:
        return "–"
    if metric.endswith("_bias"):
        return f"{value:+.2f}".replace("-", "−").replace("+0.00", "0.00").replace("−0.00", "0.00")
    if metric.endswith("_ms"):
        return _cell(record, metric, 1.0)
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _place(variant: str) -> tuple[int, int]:
    """Sorts points by the order of the axes, and along each axis by size."""
    axis, _, value = variant.rpartition("-")
    return list(AXES).index(axis), int(value)


def _name(record: Record) -> str:
    name = record.variant.removeprefix(f"{record.config.get('problem')}-")
    library = record.config.get("library")
    if library is None:
        return name
    return f"**{name}**" if library.startswith("bbh") else f"{name} ({library})"


def _cell(record: Record, metric: str, scale: float) -> str:
    metrics = record.metrics
    if metric not in metrics:
        return ""
    value = metrics[metric] * scale
    # Three significant digits, and a spread with as many digits after the point.
    exponent = int(f"{value:.2e}".partition("e")[2])
    behind = max(0, 2 - exponent)
    text = f"{value:,.{behind}f}"
    if f"{metric}_q1" in metrics:
        spread = (metrics[f"{metric}_q3"] - metrics[f"{metric}_q1"]) / 2
        text += f" ± {spread * scale:,.{behind}f}"
    return text
