"""The benchmark of large networks: what Bayes by Hypernet costs beside one plain network."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import nn

from bbh.posterior import Posterior
from bbh.training.recorded import fastest_convolutions
from bbh_studies.bench.adapters import adapted_transformer
from bbh_studies.bench.networks import plain_convolutions, resnet50, tiny_convolutions
from bbh_studies.bench.own import OWN_METHODS, num_parameters, problem_steps
from bbh_studies.bench.problems import Problem, Sizes
from bbh_studies.bench.records import HEADLINE, SIDE_BY_SIDE, Writer, headline_table
from bbh_studies.bench.settings import Settings
from bbh_studies.bench.timing import Task, Timing, interleaved

# Times on a GPU and on a CPU have nothing to do with each other.
STUDIES = {"cuda": "bench-large", "cpu": "bench-large-cpu"}
_CONTENDERS = ("map", "bbb", "bbh-one-draw", "bbh")


@dataclass(frozen=True)
class LargeProblem:
    """A large network and how it is trained.

    Attributes:
        name: Its name in records.
        make_network: Makes a freshly initialised network.
        pixels: Height and width of the images.
        batch: Images in a training step.
        precision: Fabric's name of the precision.
    """

    name: str
    make_network: Callable[[], nn.Module]
    pixels: int
    batch: int
    precision: str

    def on(self, device: torch.device) -> Problem:
        """The problem with its batch on a device."""
        shape = (3, self.pixels, self.pixels)
        return Problem(self.name, self.make_network, shape, Sizes(batch=self.batch), device)


CONVOLUTIONS = LargeProblem("convolutions", plain_convolutions, 32, 8, "32-true")
RESNET50 = LargeProblem("resnet50", resnet50, 64, 64, "bf16-mixed")
ADAPTERS = LargeProblem("adapters", adapted_transformer, 32, 4, "32-true")
# To see whether everything works: no large network.
TINY = LargeProblem("tiny", tiny_convolutions, 8, 2, "32-true")


def bench_large(
    settings: Settings, console: Console, problems: tuple[LargeProblem, ...] | None = None
) -> dict[str, float]:
    """Measures, prints and records; returns the headline numbers.

    Args:
        settings: Settings of the benchmark.
        console: For tables and progress.
        problems: The networks; None for all on a GPU, and on a CPU for those that it trains in
            seconds a step.
    """
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    everywhere = (CONVOLUTIONS, ADAPTERS)
    problems = problems or ((*everywhere, RESNET50) if on_gpu else everywhere)
    study = STUDIES[device.type]
    writer = Writer(study, settings, device)
    headline: dict[str, float] = {}
    load_before = os.getloadavg()[0]
    with console.status("starting") as status, fastest_convolutions():
        for problem in problems:
            torch.manual_seed(settings.seed)
            status.update(f"{problem.name}: building and training")
            headline |= _measure(problem, problem.on(device), settings, writer)
    load = {"load_before": load_before, "load_after": os.getloadavg()[0]}
    writer.write(HEADLINE, HEADLINE, "all", headline, **load)
    console.print(headline_table(study, headline))
    return headline


def _measure(
    large: LargeProblem, problem: Problem, settings: Settings, writer: Writer
) -> dict[str, float]:
    """Builds all contenders, times their steps in turn, and compares each with MAP."""
    found: dict[str, dict[str, float]] = {}
    tasks: list[Task] = []
    memory = {name: _training_memory(name, large, problem) for name in _CONTENDERS}
    for name in _CONTENDERS:
        posterior, seconds = _built(name, problem)
        draws = OWN_METHODS[name].likelihood_samples
        steps = problem_steps(
            posterior, problem, likelihood_samples=draws, precision=large.precision
        )
        step: Callable[[], object] = lambda steps=steps: steps.take(  # noqa: E731
            (problem.inputs, problem.targets), 1.0
        )
        found[name] = {"build_s": seconds, "parameters": num_parameters(posterior)}
        found[name] |= memory[name]
        tasks.append(Task(name, step, settings.repeats))
    timed = interleaved(tasks, rounds=settings.rounds, warm_up=4, device=problem.device)
    weights = found["map"]["parameters"]
    headline: dict[str, float] = {f"{large.name}_weights": weights}
    for name, metrics in found.items():
        if name in timed.timings:
            metrics |= timed.timings[name].milliseconds("step")
        writer.write(
            SIDE_BY_SIDE,
            f"{large.name}-{name}",
            OWN_METHODS[name].method,
            metrics,
            problem=large.name,
            batch=large.batch,
            pixels=large.pixels,
            precision=large.precision,
            failures=timed.failures.get(name, ""),
        )
        if name != "map":
            headline |= _beside_map(f"{large.name}_{name}", name, found, timed.timings)
    return headline


def _beside_map(
    title: str, name: str, found: dict[str, dict[str, float]], timings: dict[str, Timing]
) -> dict[str, float]:
    """What one contender takes, as multiples of what MAP takes."""
    own, plain = found[name], found["map"]
    ratios = {f"{title}_build_s": own["build_s"]}
    ratios[f"{title}_parameters_over_map"] = own["parameters"] / plain["parameters"]
    if "memory_bytes" in own:
        ratios[f"{title}_memory_over_map"] = own["memory_bytes"] / plain["memory_bytes"]
    if name in timings and "map" in timings:
        ratios[f"{title}_step_over_map"] = timings[name].median / timings["map"].median
    return ratios


def _built(name: str, problem: Problem) -> tuple[Posterior[Any], float]:
    """A posterior, and the seconds that it took to make of a network on the device."""
    network = problem.make_network().to(problem.device)
    started = time.perf_counter()
    posterior = OWN_METHODS[name].make(network)
    if problem.device.type == "cuda":
        torch.cuda.synchronize(problem.device)
    return posterior, time.perf_counter() - started


def _training_memory(name: str, large: LargeProblem, problem: Problem) -> dict[str, float]:
    """The most memory of a GPU that two steps hold, with all that the posterior keeps there.

    Steps are taken one by one and not recorded, and cuDNN does not try its algorithms: what these
    trials need for a moment is no part of training. A CPU has no such count.
    """
    if problem.device.type != "cuda":
        return {}
    before = torch.cuda.memory_allocated(problem.device)
    torch.cuda.reset_peak_memory_stats(problem.device)
    with torch.backends.cudnn.flags(benchmark=False):
        posterior, _ = _built(name, problem)
        draws = OWN_METHODS[name].likelihood_samples
        steps = problem_steps(
            posterior,
            problem,
            cuda_graph=False,
            likelihood_samples=draws,
            precision=large.precision,
        )
        for _ in range(2):
            steps.take((problem.inputs, problem.targets), 1.0)
    torch.cuda.synchronize(problem.device)
    return {"memory_bytes": torch.cuda.max_memory_allocated(problem.device) - before}
