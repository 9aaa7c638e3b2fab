"""The GPU benchmark: the largest generator against the memory's speed, then other methods."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bbh import generators, methods
from bbh.generators.hypernetwork import Hypernetwork
from bbh.likelihoods import Categorical
from bbh.noise import GaussianNoise
from bbh.posterior import Posterior
from bbh.training.recorded import fastest_convolutions
from bbh_studies.bench.compare import compare, find, ratio
from bbh_studies.bench.contenders import check_prediction
from bbh_studies.bench.cpu import SCALING_TITLE, follow, gather, not_measured
from bbh_studies.bench.own import (
    num_parameters,
    own_contenders,
    own_prediction,
    plain_kernels,
    problem_steps,
)
from bbh_studies.bench.problems import Problem, lenet, resnet, small_mlp
from bbh_studies.bench.records import (
    FLOOR,
    HEADLINE,
    SIDE_BY_SIDE,
    Writer,
    headline_table,
    rows_table,
)
from bbh_studies.bench.scaling import AXES
from bbh_studies.bench.settings import Settings
from bbh_studies.bench.timing import Task, Timed, Timing, interleaved, peak_memory

STUDY = "bench-gpu"
_FLOAT_BYTES = 4
_COPY = "copy"


@dataclass(frozen=True)
class Extent:
    """How large the GPU benchmark's own parts are.

    Args:
        hidden: Widths of the layer-wise generator: the paper's make 222,331,368 parameters.
        images: Inputs of the large prediction.
        copied: Bytes that a copy reads, and again writes: far more than any cache holds.
        blocks: Residual blocks per stage: ResNet-32 has five.
        axes: Quantities whose effect on cost is measured, with their values.
    """

    hidden: tuple[int, ...] = (64, 256, 512)
    images: int = 10_000
    copied: int = 4 * 2**30
    blocks: int = 5
    axes: tuple[tuple[str, tuple[int, ...]], ...] = tuple(AXES.items())


# Contender on the deep network → name of the ratio of its step time to MAP's. In the paper's
# comparison one draw is in the likelihood, so that both networks see the batch once. ``all_draws``
# is the method's own number, which was all draws in version 0.1.
_DEEP = {
    "bbh-one-draw": "bbh_{}_step_over_map",
    "bbh": "bbh_all_draws_{}_step_over_map",
    "ensemble": "ensemble_{}_step_over_map",
}


def floor_bytes(posterior: Posterior[Any], moments: torch.dtype = torch.float32) -> int:
    """Bytes that a training step with Adam has to move at least.

    The forward pass reads the output layers' matrices; the update reads and writes every
    parameter and its two moments. The backward pass of an ideal step reads nothing that large.

    Args:
        posterior: The posterior that is trained.
        moments: Precision of the matrices' moments.
    """
    matrices = sum(
        module.output_weight.numel()
        for module in posterior.modules()
        if isinstance(module, Hypernetwork)
    )
    saved = _FLOAT_BYTES - moments.itemsize
    return _FLOAT_BYTES * (matrices + 2 * 3 * num_parameters(posterior)) - 2 * 2 * saved * matrices


def bench_gpu(
    settings: Settings,
    console: Console,
    *,
    device: torch.device | None = None,
    extent: Extent | None = None,
) -> dict[str, float]:
    """Measures, prints and records; returns the headline numbers.

    Args:
        settings: Settings of the benchmark.
        console: For tables and progress.
        device: Where to measure; None takes the CUDA device.
        extent: Size of the benchmark; None takes the full size.
    """
    extent = extent or Extent()
    # Other libraries are compared on the CPU.
    settings = replace(settings, peers=None)
    if device is None:
        if not torch.cuda.is_available():
            raise ValueError("bbh bench gpu: PyTorch finds no CUDA device here.")
        device = torch.device("cuda", torch.cuda.current_device())
    writer = Writer(STUDY, settings, device)
    headline: dict[str, float] = {}
    failures: dict[str, str] = {}
    with console.status("starting") as status, fastest_convolutions():

        def tell(text: str) -> None:
            status.update(text)

        torch.manual_seed(settings.seed)
        tell("lenet: building the layer-wise generator")
        problem = lenet(settings.sizes, device)
        steps = LargeSteps(problem, settings, extent)
        found, table = steps.measure(writer)
        headline |= found
        console.print(table)
        tell(f"lenet: {settings.sizes.draws}-draw prediction of {extent.images}")
        headline |= steps.predict(replace(settings, predict_rounds=3))
        failures |= steps.timed.failures
        del steps
        for small in (problem, small_mlp(settings.sizes, device)):
            contenders, _ = gather(small, settings)
            rows = compare(small, contenders, settings, tell)
            failures |= not_measured(small, rows)
            writer.write_rows(SIDE_BY_SIDE, small.name, rows)
            console.print(rows_table(small.title, rows))
        network = resnet(settings.sizes, device, extent.blocks)
        rows = compare(network, own_contenders(network, ("map", *_DEEP)), settings, tell)
        failures |= not_measured(network, rows)
        writer.write_rows(SIDE_BY_SIDE, network.name, rows)
        console.print(rows_table(network.title, rows))
        for name, measure in _DEEP.items():
            times = ratio(rows, name, find(rows, "map"), "step")
            if times is not None:
                headline[measure.format(network.name)] = times
        for name, why in failures.items():
            console.print(f"[yellow]{name}[/yellow]: {why}", highlight=False, soft_wrap=True)
        # Written before the part that takes longest, so that a run cut short has its headline.
        writer.write(HEADLINE, HEADLINE, "all", headline, not_measured=failures)
        console.print(headline_table(STUDY, headline))
        if settings.scaling:
            rows = follow(settings, device, dict(extent.axes), writer, tell)
            console.print(rows_table(SCALING_TITLE, rows, by_method=False))
    return headline


class LargeSteps:
    """A step of LeNet's layer-wise generator in four ways, with a plain copy in between.

    ``eager``: one kernel at a time, a dense gradient, torch's fused Adam. ``graph``: the same,
    recorded and replayed. ``fused``: what ``bbh.fit`` does: a graph, and kernels that never make
    the gradient. ``half``: the same with Adam's moments in bfloat16.
    """

    def __init__(self, problem: Problem, settings: Settings, extent: Extent):
        self.problem = problem
        self.settings = settings
        self.extent = extent
        posterior = methods.bayes_by_hypernet(
            problem.make_network(),
            Categorical(),
            generator=generators.LayerWise(extent.hidden),
            noise=GaussianNoise(1),
            num_samples=5,
        ).to(problem.device)
        self.parameters = num_parameters(posterior)
        whole, less = floor_bytes(posterior), floor_bytes(posterior, torch.bfloat16)
        self.floors = {"eager": whole, "graph": whole, "fused": whole, "half": less}
        batch = (problem.inputs, problem.targets)
        eager = problem_steps(copy.deepcopy(posterior), problem, cuda_graph=False, factored=False)
        graph = problem_steps(copy.deepcopy(posterior), problem, factored=False)
        half = problem_steps(copy.deepcopy(posterior), problem, moments=torch.bfloat16)
        fused = problem_steps(posterior, problem)
        self.posterior = posterior

        def plain(steps: Any) -> None:
            with plain_kernels():
                steps.take(batch, 1.0)

        self.steps = {
            "eager": lambda: plain(eager),
            "graph": lambda: plain(graph),
            "fused": lambda: fused.take(batch, 1.0),
            "half": lambda: half.take(batch, 1.0),
        }
        self.timed = Timed({}, {})

    def measure(self, writer: Writer) -> tuple[dict[str, float], Table]:
        """Times steps in turn with the copy; returns headline numbers, and a table of speeds."""
        device = self.problem.device
        source = torch.empty(self.extent.copied // _FLOAT_BYTES, device=device).fill_(1.0)
        target = torch.empty_like(source)
        memory = {name: peak_memory(step, device) for name, step in self.steps.items()}
        tasks = [Task(name, step, self.settings.repeats) for name, step in self.steps.items()]
        tasks.append(Task(_COPY, lambda: target.copy_(source), self.settings.repeats))
        self.timed = interleaved(
            tasks,
            rounds=self.settings.rounds,
            warm_up=2,
            device=device,
            seed=self.settings.seed,
        )
        timings = self.timed.timings
        speed = 2 * source.nbytes / timings[_COPY].median
        floor = self.floors["fused"] / speed
        headline = {
            "generator_parameters": float(self.parameters),
            "copy_tb_per_s": speed / 1e12,
            "byte_floor_ms": 1e3 * floor,
        }
        table = _floor_table(self.parameters, self.floors["fused"], floor, speed)
        for name in self.steps:
            if name not in timings:
                continue
            timing = timings[name]
            metrics = timing.milliseconds("step") | {
                "parameters": float(self.parameters),
                "floor_bytes": float(self.floors[name]),
                "tb_per_s": self.floors[name] / timing.median / 1e12,
                "step_over_floor": timing.median * speed / self.floors[name],
            }
            peak = memory[name]
            metrics |= {} if peak is None else {"training_bytes": float(peak)}
            writer.write(
                FLOOR, name, "bbh", metrics, problem=self.problem.name, hidden=self.extent.hidden
            )
            _add_floor_row(table, name, timing, metrics)
        if "fused" in timings:
            headline["bbh_lenet_step_ms"] = 1e3 * timings["fused"].median
            headline["bbh_lenet_step_over_floor"] = timings["fused"].median / floor
        if "half" in timings:
            headline["bbh_lenet_half_moments_step_ms"] = 1e3 * timings["half"].median
        return headline, table

    def predict(self, settings: Settings) -> dict[str, float]:
        """Seconds that a prediction of many images takes, and what half precision changes."""
        sizes = replace(settings.sizes, images=self.extent.images)
        problem = lenet(sizes, self.problem.device)
        name = f"predict_{sizes.draws}x{sizes.images}"
        names = {f"{name}_s": torch.float32, f"{name}_bfloat16_s": torch.bfloat16}

        def predicted(precision: torch.dtype) -> Tensor:
            torch.manual_seed(settings.seed)  # the same draws
            return own_prediction(self.posterior, problem, precision=precision)

        tasks = [
            Task(name, lambda precision=precision: check_prediction(predicted(precision), problem))
            for name, precision in names.items()
        ]
        rounds = settings.predict_rounds
        timed = interleaved(tasks, rounds=rounds, device=problem.device)
        self.timed.failures.update(timed.failures)
        difference = predicted(torch.bfloat16) - predicted(torch.float32)
        return {one: timing.median for one, timing in timed.timings.items()} | {
            "predict_bfloat16_largest_difference": float(difference.abs().max())
        }


def _floor_table(parameters: int, moved: int, floor: float, speed: float) -> Table:
    table = Table(
        title=f"LeNet, layer-wise, {parameters:,} parameters: at least {moved / 1e9:.2f} GB per "
        f"step, {1e3 * floor:.3f} ms at the {speed / 1e12:.2f} TB/s of a copy"
    )
    for column in ("step", "ms", "GB at least", "TB/s", "times the floor", "train GB"):
        table.add_column(column, justify="left" if column == "step" else "right", no_wrap=True)
    return table


def _add_floor_row(table: Table, name: str, timing: Timing, metrics: dict[str, float]) -> None:
    lower, upper = timing.quartiles
    table.add_row(
        name,
        f"{1e3 * timing.median:.3f} ({1e3 * lower:.3f}–{1e3 * upper:.3f})",
        f"{metrics['floor_bytes'] / 1e9:.2f}",
        f"{metrics['tb_per_s']:.2f}",
        f"{metrics['step_over_floor']:.2f}",
        f"{metrics.get('training_bytes', 0.0) / 1e9:.2f}",
    )
