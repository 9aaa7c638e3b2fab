"""The benchmark harness: orders and ratios, never times, since tests share their machine."""

import json
import time

import pytest
import torch
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import bbh
from bbh_studies.bench import cpu, gpu
from bbh_studies.bench.adapters import adapted_transformer
from bbh_studies.bench.compare import Row, compare, fastest_peer
from bbh_studies.bench.contenders import Contender, average, load_peers, replace_layers
from bbh_studies.bench.document_tables import bench_table
from bbh_studies.bench.large import STUDIES
from bbh_studies.bench.networks import mlp
from bbh_studies.bench.own import OWN_METHODS, own_contenders, plain_kernels, problem_steps
from bbh_studies.bench.problems import Problem, Sizes, lenet, resnet, small_mlp
from bbh_studies.bench.records import Writer
from bbh_studies.bench.settings import Settings
from bbh_studies.bench.timing import Task, Timing, interleaved, peak_memory
from bbh_studies.cli import app
from bbh_studies.problems.cifar5.resnet import ResNet
from bbh_studies.record import Record

CPU = torch.device("cpu")
TINY = Sizes(batch=4, images=6, draws=3)
GOOD_ADAPTER = """
import torch
from bbh_studies.bench.contenders import Contender

def contenders(problem):
    even = torch.full((problem.sizes.images, 10), 0.1)
    return [Contender("good", "goodlib 1.0", "bbb", lambda: None, lambda size: even, 7)]
"""
BROKEN_ADAPTERS = {
    "missing": "import a_library_that_nobody_has\n",
    "raises": "def contenders(problem):\n    raise RuntimeError('two\\nlines')\n",
    "empty": "",
}


@pytest.fixture
def settings(tmp_path):
    return Settings(
        rounds=2, predict_rounds=1, repeats=1, sizes=TINY, scaling=False, out=tmp_path / "out"
    )


@pytest.fixture
def quiet():
    return Console(quiet=True)


@pytest.fixture
def _own_time(monkeypatch):
    """Sleep lasts exactly as long as asked, however busy the machine is."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.append(now.pop() + seconds))


# The timing core


@pytest.mark.usefixtures("_own_time")
def test_times_are_those_of_one_call():
    def sleep(seconds):
        return lambda: time.sleep(seconds)

    timed = interleaved(
        [Task("long", sleep(0.03)), Task("short", sleep(0.003)), Task("three", sleep(0.001), 3)],
        rounds=5,
    )
    medians = {name: timing.median for name, timing in timed.timings.items()}
    # Repeats are divided out.
    assert medians == pytest.approx({"long": 0.03, "short": 0.003, "three": 0.001})


def test_every_task_has_one_turn_per_round_in_changing_order():
    turns = []
    tasks = [Task(name, lambda name=name: turns.append(name)) for name in "abcd"]
    timed = interleaved(tasks, rounds=6, warm_up=2)
    rounds = [tuple(turns[first : first + 4]) for first in range(0, len(turns), 4)]
    assert len(rounds) == 8
    assert all(sorted(one) == list("abcd") for one in rounds)
    assert len(set(rounds)) > 1
    assert all(len(timing.seconds) == 6 for timing in timed.timings.values())
    again = []
    interleaved(
        [Task(name, lambda name=name: again.append(name)) for name in "abcd"], rounds=6, warm_up=2
    )
    assert again == turns


def test_a_task_that_fails_late_is_reported_and_stops_no_other():
    calls = []

    def fails():
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of luck\nin many words")

    timed = interleaved([Task("bad", fails), Task("good", lambda: None)], rounds=4, warm_up=1)
    assert timed.failures == {"bad": "RuntimeError: out of luck"}
    assert list(timed.timings) == ["good"]
    assert len(timed.timings["good"].seconds) == 4
    assert len(calls) == 3


def test_spread_is_that_of_the_middle_half():
    timing = Timing((5.0, 1.0, 2.0, 3.0, 4.0))
    assert timing.median == 3.0
    assert timing.quartiles == (2.0, 4.0)
    assert timing.milliseconds("step") == {
        "step_ms": 3000.0,
        "step_ms_q1": 2000.0,
        "step_ms_q3": 4000.0,
    }
    assert Timing((2.0,)).quartiles == (2.0, 2.0)


def test_peak_memory_counts_the_backward_pass_and_moments():
    weight = torch.zeros(1000, requires_grad=True)
    optimizer = torch.optim.Adam([weight])

    def step():
        optimizer.zero_grad()
        (weight * 2).sum().backward()
        optimizer.step()

    # At least a gradient and two moments of 4000 bytes each.
    assert 12_000 <= peak_memory(step, CPU) < 40_000
    assert peak_memory(lambda: 1 / 0, CPU) is None


# Contenders


def test_own_methods_step_and_predict():
    problem = small_mlp(TINY, CPU, width=8)
    rows = compare(problem, own_contenders(problem), Settings(1, 1, 1, TINY), lambda _: None)
    assert [row.contender.name for row in rows] == list(OWN_METHODS)
    for row in rows:
        assert row.failures == {}
        metrics = row.metrics()
        assert metrics["step_ms"] > 0
        assert metrics["predict_ms"] > 0
        # Adam keeps two moments of every parameter, beside everything else.
        assert metrics["training_bytes"] > 2 * 4 * metrics["parameters"]


def test_steps_are_those_of_fit():
    problem = small_mlp(TINY, CPU, width=8)
    network = problem.make_network()
    ours, theirs = (
        bbh.methods.bayes_by_backprop(network, bbh.likelihoods.Categorical()) for _ in range(2)
    )
    torch.manual_seed(1)
    problem_steps(ours, problem).take((problem.inputs, problem.targets), 1.0)
    torch.manual_seed(1)
    bbh.fit(
        theirs,
        [(problem.inputs, problem.targets)],
        epochs=1,
        num_data=problem.num_data,
        learning_rate=1e-4,
        progress=False,
    )
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_an_unfit_prediction_does_not_count():
    problem = small_mlp(TINY, CPU, width=8)
    halves = torch.full((TINY.images, 10), 0.05)
    cheat = Contender("cheat", "cheatlib 1", "bbb", lambda: None, lambda _: halves, 1)
    (row,) = compare(problem, [cheat], Settings(1, 1, 1, TINY), lambda _: None)
    assert "do not add up" in row.failures["predict"]
    assert row.predict is None
    assert row.step is not None


@pytest.mark.usefixtures("_own_time")
def test_predictions_use_the_faster_batch_size():
    problem = small_mlp(TINY, CPU, width=8)
    even = torch.full((TINY.images, 10), 0.1)

    def predict(size):
        time.sleep(0.001 * size)
        return even

    peer = Contender("peer", "lib 1", "bbb", lambda: None, predict, 1, batch_sizes=(20, 2))
    (row,) = compare(problem, [peer], Settings(1, 1, 1, TINY), lambda _: None)
    assert row.batch_size == 2


def test_fastest_peer_is_neither_ours_nor_of_another_method():
    def row(name, library, method, seconds):
        contender = Contender(name, library, method, lambda: None, lambda _: torch.ones(1), 1)
        return Row(contender, step=Timing((seconds,)))

    rows = [
        row("bbb", "bbh 1", "bbb", 0.1),
        row("slow", "slow 1", "bbb", 3.0),
        row("fast", "fast 1", "bbb", 2.0),
        row("map", "other 1", "map", 0.5),
    ]
    assert fastest_peer(rows, "bbb", "step").contender.name == "fast"
    assert fastest_peer(rows, "mnf", "step") is None
    assert cpu.compared(rows)["bbb_step_over_fastest_peer"] == pytest.approx(0.05)


def test_layers_are_replaced_at_any_depth_and_draws_averaged():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.Linear(2, 3)), nn.ReLU())
    replace_layers(network, lambda one: nn.Identity(), lambda one: nn.Flatten())
    assert [type(one) for one in network.modules()] == [
        nn.Sequential,
        nn.Flatten,
        nn.Sequential,
        nn.Identity,
        nn.ReLU,
    ]
    logits = iter([torch.tensor([[0.0, 0.0]]), torch.tensor([[30.0, 0.0]])])
    mean = average(lambda _: next(logits), torch.zeros(1, 4), 2, None)
    torch.testing.assert_close(mean, torch.tensor([[0.75, 0.25]]))


def test_resnet_is_he_et_als():
    network = ResNet()
    kernels = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(kernels) == 32
    # He et al. give 0.46 million.
    assert 0.45e6 < sum(p.numel() for p in network.parameters()) < 0.47e6
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert resnet(TINY, CPU).name == "resnet32"


# Peers


def test_a_peer_that_fails_is_reported_and_stops_no_other(tmp_path, settings, quiet):
    for name, text in {**BROKEN_ADAPTERS, "good": GOOD_ADAPTER}.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "_shared.py").write_text("raise RuntimeError('not an adapter')")
    peers = load_peers(tmp_path, small_mlp(TINY, CPU))
    assert [one.name for one in peers.contenders] == ["good"]
    assert set(peers.failures) == set(BROKEN_ADAPTERS)
    assert "a_library_that_nobody_has" in peers.failures["missing"]
    assert peers.failures["raises"] == "RuntimeError: two"

    only = ("bbb", "missing", "good")
    settings = Settings(**{**vars(settings), "peers": tmp_path, "only": only})
    headline = cpu.bench_cpu(settings, quiet)
    assert headline["bbb_step_over_fastest_peer"] > 1  # the good one does nothing
    record = read(settings.out / "bench-cpu/headline/headline")
    assert set(record.config["not_measured"]) == {"missing"}
    assert "goodlib 1.0" in record.config["libraries"]


def test_an_unknown_contender_is_named(tmp_path, settings, quiet):
    settings = Settings(**{**vars(settings), "only": ("nobody",)})
    with pytest.raises(ValueError, match="nobody: choose from map, ensemble"):
        cpu.bench_cpu(settings, quiet)


# Records


@pytest.mark.slow
def test_cpu_records_can_be_read(settings, quiet):
    only = ("map", "bbb", "bbh-single-one-draw")
    settings = Settings(**{**vars(settings), "only": only, "scaling": True})
    headline = cpu.bench_cpu(settings, quiet, axes={"noise": (1, 2), "samples": (2,)})
    timed = {"bbh_single_step_over_map", "nearest_neighbour_ms", "nearest_neighbour_entropy_ms"}
    assert timed <= set(headline)
    # Without peers there is nobody to compare with.
    assert "bbb_step_over_fastest_peer" not in headline
    folder = settings.out / "bench-cpu"
    assert read(folder / "headline/headline").metrics == headline
    row = read(folder / "side-by-side/lenet-bbb")
    assert (row.study, row.method, row.variant) == ("bench-cpu", "bbb", "lenet-bbb")
    assert row.config["threads"] == torch.get_num_threads()
    assert row.config["sizes"] == {"batch": 4, "images": 6, "draws": 3}
    assert row.metrics["parameters"] == 2 * 431_080
    assert read(folder / "scaling/noise-2").config["value"] == 2
    assert "Infinity" not in json.dumps(headline)


def read(folder):
    return Record.read(folder / "record.json")


@pytest.mark.slow
def test_gpu_benchmark_runs_at_a_small_size_anywhere(settings, quiet):
    extent = gpu.Extent((2, 3), images=5, copied=2**20, blocks=1, axes=(("samples", (2,)),))
    settings = Settings(**{**vars(settings), "only": ("map", "bbh"), "rounds": 1, "scaling": True})
    headline = gpu.bench_gpu(settings, quiet, device=CPU, extent=extent)
    assert set(headline) == {
        "generator_parameters",
        "copy_tb_per_s",
        "byte_floor_ms",
        "bbh_lenet_step_ms",
        "bbh_lenet_step_over_floor",
        "bbh_lenet_half_moments_step_ms",
        "predict_3x5_s",
        "predict_3x5_bfloat16_s",
        "predict_bfloat16_largest_difference",
        "bbh_resnet8_step_over_map",
        "bbh_all_draws_resnet8_step_over_map",
        "ensemble_resnet8_step_over_map",
    }
    rows = {name: read(settings.out / f"bench-gpu/floor/{name}") for name in STEPS}
    for row in rows.values():
        floor_ms = row.metrics["floor_bytes"] / headline["copy_tb_per_s"] / 1e9
        assert row.metrics["step_over_floor"] == pytest.approx(row.metrics["step_ms"] / floor_ms)
    floor_ms = rows["fused"].metrics["floor_bytes"] / headline["copy_tb_per_s"] / 1e9
    assert headline["byte_floor_ms"] == pytest.approx(floor_ms)
    assert rows["fused"].metrics["step_ms"] == headline["bbh_lenet_step_ms"]


STEPS = ("eager", "graph", "fused", "half")


def test_gpu_benchmark_without_one_says_so(quiet, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no CUDA device"):
        gpu.bench_gpu(Settings(), quiet)


def test_byte_floor_is_a_hand_count():
    network = nn.Linear(2, 3)  # six weights and three biases
    posterior = bbh.methods.bayes_by_hypernet(
        network,
        bbh.likelihoods.Categorical(),
        generator=bbh.generators.LayerWise((4, 5)),
        noise=bbh.GaussianNoise(1),
    )
    # Each of the two generators: [noise, code] → 4 → 5 → weights, a bias each.
    trunk = (2 * 4 + 4) + (4 * 5 + 5)
    matrices = 5 * 6 + 5 * 3
    parameters = 2 * trunk + matrices + 6 + 3
    assert gpu.floor_bytes(posterior) == 4 * matrices + 4 * 3 * 2 * parameters
    # Two moments of the matrices, read and written, in two bytes instead of four.
    saved = 2 * 2 * 2 * matrices
    assert gpu.floor_bytes(posterior, torch.bfloat16) == gpu.floor_bytes(posterior) - saved


def test_byte_floor_of_the_papers_generator():
    problem = lenet(TINY, CPU)
    shapes = {name: value.shape for name, value in problem.make_network().named_parameters()}
    assert bbh.generators.LayerWise(gpu.Extent().hidden).num_parameters(shapes, 1) == 222_331_368


def test_plain_kernels_are_put_back():
    from bbh.divergences import neighbours
    from bbh.generators.factored import outer_adam

    before = (neighbours.triton_available, outer_adam.triton_available)
    with plain_kernels():
        assert not neighbours.triton_available()
        assert not outer_adam.triton_available()
    assert (neighbours.triton_available, outer_adam.triton_available) == before


# The command


def test_the_command_writes_where_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["bench", "cpu", "--quick", "--only", "map", "--no-scaling", "--rounds", "2"]
    result = CliRunner().invoke(app, [*words, "--out", "here"])
    assert result.exit_code == 0, result.output
    assert "Records: here/bench-cpu" in result.output
    assert read(tmp_path / "here/bench-cpu/side-by-side/mlp-map").metrics["step_ms"] > 0


def test_large_networks_are_compared_with_map(tmp_path):
    words = ["bench", "large", "--quick", "--rounds", "2", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    records = tmp_path / STUDIES["cuda" if torch.cuda.is_available() else "cpu"]
    found = read(records / "headline/headline").metrics
    weights, parameters = (
        read(records / f"side-by-side/tiny-{name}").metrics["parameters"] for name in ("map", "bbb")
    )
    assert found["tiny_weights"] == weights
    # A mean and a scale for every weight.
    assert found["tiny_bbb_parameters_over_map"] == 2 == parameters / weights
    assert found["tiny_bbh_step_over_map"] > 0
    # Only a GPU counts its memory.
    assert "tiny_bbh_memory_over_map" not in found


def test_adapters_begin_as_nothing_and_are_all_that_is_trained():
    network = adapted_transformer(classes=3, width=24, blocks=2, heads=3)
    images = torch.randn(5, 3, 32, 32)
    before = network(images)
    assert before.shape == (5, 3)
    trained = {name for name, one in network.named_parameters() if one.requires_grad}
    assert len(trained) == 2 * 2 * 2
    assert all(".up." in name or ".down." in name for name in trained)
    for name, parameter in network.named_parameters():
        if ".down." in name:
            nn.init.ones_(parameter)
    torch.testing.assert_close(network(images), before)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["bench", "tpu"], "choose one of cpu, gpu"), (["bench", "cpu", "--peers", "no"], "folder")],
)
def test_the_command_says_what_is_wrong(words, message):
    result = CliRunner().invoke(app, words)
    assert result.exit_code != 0
    assert message in str(result.exception)


def test_problems_are_the_same_for_everyone():
    one, other = (Problem("mlp", mlp, (784,), TINY) for _ in range(2))
    torch.testing.assert_close(one.inputs, other.inputs)
    torch.testing.assert_close(one.test_inputs, other.test_inputs)


def test_tables_for_documents(settings):
    writer = Writer("bench-cpu", settings, CPU)
    spread = {"step_ms": 12.0, "step_ms_q1": 11.0, "step_ms_q3": 14.0}
    for name, library in (("bbb", "bbh 0.1.0"), ("peer", "other 2.0")):
        metrics = spread | {"parameters": 862_160.0}
        writer.write(
            "side-by-side", f"lenet-{name}", "bbb", metrics, problem="lenet", library=library
        )
    writer.write("headline", "headline", "all", {"ratio": 0.98765, "ratio_q1": 0.9})
    table = bench_table(writer.records, "bench-cpu", "side-by-side", "lenet").splitlines()
    assert table[0] == r"|  | step \[ms\] | parameters \[million\] |"
    assert table[2:] == [
        "| **bbb** | 12.0 ± 1.5 | 0.862 |",
        "| peer (other 2.0) | 12.0 ± 1.5 | 0.862 |",
    ]
    assert bench_table(writer.records, "bench-cpu", "headline").splitlines()[2:] == [
        "| `ratio` | 0.988 |"
    ]
    assert bench_table(writer.records, "bench-gpu", "headline") == ""


def test_floor_table_goes_from_slow_to_fast_with_three_digits(settings):
    writer = Writer("bench-gpu", settings, CPU)
    for name, step in (("fused", 0.53217), ("eager", 1234.5), ("graph", 56.78)):
        spread = {"step_ms": step, "step_ms_q1": 0.99 * step, "step_ms_q3": 1.01 * step}
        writer.write("floor", name, "bbh", spread, problem="lenet")
    assert bench_table(writer.records, "bench-gpu", "floor").splitlines()[2:] == [
        "| eager | 1,234 ± 12 |",
        "| graph | 56.8 ± 0.6 |",
        "| fused | 0.532 ± 0.005 |",
    ]


def test_scaling_table_follows_the_axes_by_size(settings):
    writer = Writer("bench-cpu", settings, CPU)
    for name in ("noise-4", "samples-10", "samples-2", "noise-16"):
        writer.write("scaling", name, "bbh", {"step_ms": 1.0})
    table = bench_table(writer.records, "bench-cpu", "scaling").splitlines()[2:]
    names = [line.split("|")[1].strip() for line in table]
    assert names == ["samples-2", "samples-10", "noise-4", "noise-16"]
