"""The CPU benchmark: this library's methods beside other libraries'."""

import os
import platform
from collections.abc import Sequence
from functools import partial

import torch
from rich.console import Console

from bbh.divergences import Divergence, NearestNeighbour, NearestNeighbourEntropy
from bbh.priors import Normal
from bbh.samples import Shapes
from bbh_studies.bench.compare import Row, Tell, compare, fastest_peer, find, ratio
from bbh_studies.bench.contenders import Contender, load_peers
from bbh_studies.bench.own import OWN_METHODS, own_contenders
from bbh_studies.bench.problems import Problem, lenet, small_mlp
from bbh_studies.bench.records import (
    HEADLINE,
    SCALING,
    SIDE_BY_SIDE,
    Writer,
    headline_table,
    rows_table,
)
from bbh_studies.bench.scaling import AXES, points
from bbh_studies.bench.settings import Settings
from bbh_studies.bench.timing import Task, Timing, interleaved

STUDY = "bench-cpu"
# Contender → name of the ratio of its step time to MAP's. In the paper's comparison one draw is in
# the likelihood, so that both networks see the batch once. ``all_draws`` is the method's own
# number, which was all draws in version 0.1.
_OVER_MAP = {
    "bbh-single-one-draw": "bbh_single_step_over_map",
    "bbh-single": "bbh_single_all_draws_step_over_map",
    "bbh-single-narrow-one-draw": "bbh_single_narrow_step_over_map",
    "bbh-single-narrow": "bbh_single_narrow_all_draws_step_over_map",
    "bbh-one-draw": "bbh_step_over_map",
    "bbh": "bbh_all_draws_step_over_map",
}
SCALING_TITLE = "Bayes by Hypernet on the MLP, one thing varied"


def bench_cpu(
    settings: Settings,
    console: Console,
    *,
    axes: dict[str, tuple[int, ...]] = AXES,
) -> dict[str, float]:
    """Measures, prints and records; returns the headline numbers.

    Args:
        settings: Settings of the benchmark.
        console: For tables and progress.
        axes: Quantities whose effect on cost is measured, with their values.
    """
    device = torch.device("cpu")
    writer = Writer(STUDY, settings, device)
    headline: dict[str, float] = {}
    # The load is recorded, since times say little if other programs use the machine.
    load_before = os.getloadavg()[0]
    failures: dict[str, str] = {}
    with console.status("starting") as status:

        def tell(text: str) -> None:
            status.update(text)

        for problem in (lenet(settings.sizes, device), small_mlp(settings.sizes, device)):
            torch.manual_seed(settings.seed)
            contenders, refused = gather(problem, settings)
            failures |= refused
            rows = compare(problem, contenders, settings, tell)
            writer.write_rows(SIDE_BY_SIDE, problem.name, rows)
            console.print(rows_table(problem.title, rows))
            suffix = "" if problem.name == "lenet" else f"_{problem.name}"
            headline |= {name + suffix: value for name, value in compared(rows).items()}
            failures |= not_measured(problem, rows)
        tell("nearest neighbours")
        for name, timing in nearest_neighbours(settings).items():
            headline |= timing.milliseconds(name)
        if settings.scaling:
            scaled = follow(settings, device, axes, writer, tell)
            console.print(rows_table(SCALING_TITLE, scaled, by_method=False))
    for name, why in failures.items():
        console.print(f"[yellow]{name}[/yellow]: {why}", highlight=False, soft_wrap=True)
    writer.write(
        HEADLINE,
        HEADLINE,
        "all",
        headline,
        processor=platform.processor() or platform.machine(),
        load_before=load_before,
        load_after=os.getloadavg()[0],
        not_measured=failures,
        libraries=libraries(writer),
    )
    console.print(headline_table(STUDY, headline))
    return headline


def gather(problem: Problem, settings: Settings) -> tuple[list[Contender], dict[str, str]]:
    """The contenders, and for libraries that do not take part the reason."""
    own = [name for name in OWN_METHODS if not settings.only or name in settings.only]
    others = [name for name in settings.only if name not in OWN_METHODS]
    folder = settings.peers if others or not settings.only else None
    known = {path.stem for path in folder.glob("*.py")} if folder is not None else set[str]()
    if unknown := [name for name in others if name not in known]:
        raise ValueError(
            f"there is no contender {', '.join(unknown)}: choose from "
            f"{', '.join([*OWN_METHODS, *sorted(known)])}."
        )
    peers = load_peers(folder, problem, others)
    return [*(own_contenders(problem, own) if own else []), *peers.contenders], peers.failures


def compared(rows: Sequence[Row]) -> dict[str, float]:
    """Ratios of median times, as far as both are known."""
    found = {
        "bbb_step_over_fastest_peer": ratio(rows, "bbb", fastest_peer(rows, "bbb", "step"), "step"),
        "bbb_predict_over_fastest_peer": ratio(
            rows, "bbb", fastest_peer(rows, "bbb", "predict"), "predict"
        ),
        **{
            measure: ratio(rows, name, find(rows, "map"), "step")
            for name, measure in _OVER_MAP.items()
        },
    }
    return {name: value for name, value in found.items() if value is not None}


def nearest_neighbours(settings: Settings, num_samples: int = 10) -> dict[str, Timing]:
    """Times of the paper's estimator and ours, with gradients, on draws of LeNet's weights.

    Args:
        settings: Settings of the benchmark.
        num_samples: Draws of every weight; by default as many as Bayes by Hypernet takes in a step.
    """
    problem = lenet(settings.sizes, torch.device("cpu"))
    named = problem.make_network().named_parameters()
    shapes: Shapes = {name: value.shape for name, value in named}
    samples = {
        name: torch.randn(num_samples, *shape).requires_grad_() for name, shape in shapes.items()
    }
    prior = Normal(1.0)

    def work(divergence: Divergence) -> None:
        torch.autograd.grad(divergence(samples, shapes, prior).complexity, list(samples.values()))

    tasks = [
        Task(name, partial(work, divergence), settings.repeats)
        for name, divergence in (
            ("nearest_neighbour", NearestNeighbour()),
            ("nearest_neighbour_entropy", NearestNeighbourEntropy()),
        )
    ]
    return interleaved(tasks, rounds=settings.rounds, seed=settings.seed, warm_up=2).timings


def follow(
    settings: Settings,
    device: torch.device,
    axes: dict[str, tuple[int, ...]],
    writer: Writer,
    tell: Tell,
) -> list[Row]:
    """Measures cost along the axes, all points in turn, and writes a record for each."""
    found = points(settings.sizes, device, axes)
    problem = small_mlp(settings.sizes, device)
    rows = compare(problem, [point.contender for point in found], settings, tell)
    for point, row in zip(found, rows, strict=True):
        writer.write(
            SCALING,
            row.contender.name,
            "bbh",
            row.metrics(),
            problem=problem.name,
            axis=point.axis,
            value=point.value,
        )
    return rows


def not_measured(problem: Problem, rows: Sequence[Row]) -> dict[str, str]:
    """The reasons why cells of the table are empty."""
    return {
        f"{problem.name} {row.contender.name} {measure}": why
        for row in rows
        for measure, why in row.failures.items()
    }


def libraries(writer: Writer) -> list[str]:
    """Names and versions of all libraries that were timed."""
    return sorted({one.config["library"] for one in writer.records if "library" in one.config})
