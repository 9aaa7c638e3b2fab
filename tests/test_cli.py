"""The command line: through Typer's runner, and once as a true process."""

import json
import re
import shlex
import signal
import subprocess
import sys
from functools import partial

import pytest
from typer.testing import CliRunner

from bbh_studies.cli import app, console, entry_point
from bbh_studies.datasets.sources import NOTMNIST, Source
from bbh_studies.problems.images.train_and_measure import ShuffledBatches
from bbh_studies.problems.study import Study
from bbh_studies.record import Record, RecordError
from bbh_studies.run import train
from bbh_studies.settings.words import ConfigError
from bbh_studies.studies import STUDIES, find_study
from studies.report_records import make_record
from terminal import unwrapped

runner = CliRunner()
METHODS = tuple(find_study("mnist").rows("paper"))
MAP = ("run", "digits", "--method", "map", "--device", "cpu")


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "bbh_studies", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True)


@pytest.fixture
def ended(capsys):
    """Runs a command as a process would, and returns its exit code and what it said of errors."""
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            entry_point(partial(app, arguments))
        return stopped.value.code, capsys.readouterr().err

    yield run
    signal.signal(signal.SIGTERM, before)


def test_version_and_help():
    assert runner.invoke(app, ["--version"]).output.startswith("bbh 0.")
    # A narrow terminal cuts the names of options.
    shown = unwrapped(runner.invoke(app, ["--help"], env={"COLUMNS": "80"}).output)
    assert all(name in shown for name in ("demo", "run", "report", "data", "--install-completion"))


@pytest.mark.parametrize(
    "words", ["run", "demo", "inspect", "report", "data list", "data fetch", "data check"]
)
def test_help_of_every_command_has_an_example(words):
    shown = unwrapped(runner.invoke(app, [*words.split(), "--help"]).output)
    assert "Example" in shown
    assert f"bbh {words}" in shown


@pytest.mark.parametrize("words", ["", "run", "demo", "inspect", "report", "bench", "data check"])
def test_help_speaks_no_python(words):
    shown = runner.invoke(app, [*words.split(), "--help"], env={"COLUMNS": "100"}).output
    assert "Show this message" in shown
    assert not re.search(r"<|list\[|\b(Path|int|str|bool|None)\b", shown)


def test_help_tells_the_exit_codes():
    shown = unwrapped(runner.invoke(app, ["run", "--help"]).output)
    assert "Exit codes: 0 all runs finished, 1 an error" in shown
    assert "130 interrupted" in shown


def test_a_report_is_a_file_and_no_folder(tmp_path):
    # Wide enough for the message to stay on one line, however long the path is.
    arguments = ["report", str(tmp_path), "--out", str(tmp_path)]
    result = runner.invoke(app, arguments, env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert "is a directory" in unwrapped(result.output)


def test_a_run_writes_a_record_that_can_be_read_again(tmp_path):
    arguments = [*MAP, "--seed", "3", "--epochs", "2", "--out", str(tmp_path)]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "digits 1/1 MAP, seed 3: err" in result.output
    assert "\x1b" not in result.output
    # Lines of the run itself may be longer: a terminal breaks them, a log file need not.
    assert max(map(len, result.output.splitlines()[1:-1])) <= console.width
    folder = tmp_path / "digits" / "corrected" / "map-3"
    assert sorted(file.name for file in folder.iterdir()) == ["arrays.npz", "record.json"]
    record = Record.read(folder / "record.json")
    assert (record.study, record.method, record.seed) == ("digits", "map", 3)
    assert record.config["epochs"] == len(record.history) == 2
    assert {"error", "nll", "brier", "ece", "entropy_auc", "outlier_entropy_auc"} <= set(
        record.metrics
    )
    assert {"ood_auroc", "ood_auroc_mi", "seconds", "steps_per_second"} <= set(record.metrics)
    histograms = ("entropy_auc", "outlier_entropy_auc")
    for name in histograms:
        assert record.metrics[f"{name}_histogram"] == pytest.approx(record.metrics[name], abs=0.02)


def test_finished_runs_are_kept_unless_forced(tmp_path, ended):
    arguments = [*MAP, "--epochs", "1", "--out", str(tmp_path)]
    assert runner.invoke(app, arguments).exit_code == 0
    path = tmp_path / "digits" / "corrected" / "map-0" / "record.json"
    before = path.stat().st_mtime_ns
    # The missing seed is trained; the other is the same file, with one process and with several.
    more = runner.invoke(app, [*arguments, "--seed", "0", "--seed", "1"])
    assert more.exit_code == 0, more.output
    assert "digits 1/2 MAP, seed 0: err" in more.output
    assert more.output.count("was there") == 1
    assert "1 of 2 runs were finished before" in unwrapped(more.output)
    for option in (("--resume",), ("--jobs", "2")):
        kept = runner.invoke(app, [*arguments, "--seed", "0", "--seed", "1", *option])
        assert kept.exit_code == 0, kept.output
        assert kept.output.count("was there") == 2
        assert "2 of 2 runs were finished before" in unwrapped(kept.output)
    assert path.stat().st_mtime_ns == before
    dry = unwrapped(runner.invoke(app, [*arguments, "--dry-run"]).output)
    assert "(finished)" in dry
    # Runs with other settings are neither kept nor replaced.
    for option in ((), ("--resume",), ("--jobs", "2")):
        code, said = ended(*arguments, *option, "--set", "bayesian=0,3")
        assert code == 2
        assert "bayesian=, not 0,3" in said
        assert "--force" in said
    assert path.stat().st_mtime_ns == before
    forced = runner.invoke(app, [*arguments, "--force", "--set", "bayesian=0,2"])
    assert forced.exit_code == 0, forced.output
    assert Record.read(path).config["bayesian"] == ["0", "2"]


def test_force_and_resume_contradict_each_other(tmp_path, ended):
    code, said = ended(*MAP, "--out", str(tmp_path), "--force", "--resume")
    assert code == 2
    assert "choose one" in said


def test_an_interrupted_run_goes_on_with_the_command_it_prints(tmp_path, monkeypatch, ended):
    arguments = [*MAP, "--epochs", "3", "--set", "prior_scale=2"]
    whole = runner.invoke(app, [*arguments, "--out", str(tmp_path / "whole")])
    assert whole.exit_code == 0, whole.output

    real = ShuffledBatches.__iter__
    epochs = []

    def interrupted(self):
        epochs.append(1)
        if len(epochs) == 3:
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(ShuffledBatches, "__iter__", interrupted)
    stopped = runner.invoke(app, [*arguments, "--out", str(tmp_path / "some parts")])
    assert stopped.exit_code == 130
    (line,) = [line for line in stopped.output.splitlines() if "to go on: " in line]
    program, *again = shlex.split(line.partition("to go on: ")[2])
    assert program == "bbh"
    assert again[-1] == "--resume"
    folder = tmp_path / "some parts" / "digits" / "corrected" / "map-0"
    assert [file.name for file in folder.iterdir()] == ["checkpoint.pt"]

    # Not with other settings, which the record would then claim.
    for other in ("learning_rate=0.05", "prior_scale=3", "batch_size=50", "epochs=4"):
        code, said = ended(*again, "--set", other)
        assert code == 2
        name, _, value = other.partition("=")
        assert f"is of a run with {name}=" in said
        assert f", not {value}. Choose another --out" in said
    # And it is not lost by forgetting to resume it.
    code, said = ended(*again[:-1])
    assert code == 2
    assert "is of an interrupted run: --resume goes on with it, --force starts it anew" in said
    assert (folder / "checkpoint.pt").exists()

    resumed = runner.invoke(app, again)
    assert resumed.exit_code == 0, resumed.output
    assert len(epochs) == 4  # two whole ones, the one that broke off, and only that again
    first = Record.read(
        tmp_path / "whole" / folder.relative_to(tmp_path / "some parts") / "record.json"
    )
    second = Record.read(folder / "record.json")
    quality = ("error", "nll", "ood_auroc")
    assert [first.metrics[name] for name in quality] == [second.metrics[name] for name in quality]


def test_a_run_that_diverges_does_not_stop_the_others(tmp_path):
    arguments = ["run", "digits", "--method", "bbb", "--method", "map", "--device", "cpu"]
    # MAP has no such setting.
    arguments += ["--epochs", "1", "--set", "initial_scale=1e30", "--out", str(tmp_path)]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 1
    assert (
        "digits 1/2 Bayes by Backprop, seed 0: failed, training stopped at step 1" in result.output
    )
    assert "failed: digits Bayes by Backprop, seed 0. Where training diverged" in result.output
    records = [path.parent.name for path in tmp_path.rglob("record.json")]
    assert records == ["map-0"]


def test_rerunning_leaves_no_record_that_looks_finished(tmp_path, monkeypatch):
    arguments = [*MAP, "--seed", "0", "--seed", "1", "--epochs", "1", "--out", str(tmp_path)]
    assert runner.invoke(app, arguments).exit_code == 0

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(ShuffledBatches, "__iter__", interrupted)
    assert runner.invoke(app, [*arguments, "--force"]).exit_code == 130
    # Neither of the one that was trained nor of the one whose turn had not come.
    assert not list(tmp_path.rglob("record.json"))


def test_a_dry_run_needs_no_data_and_leaves_no_trace(tmp_path, monkeypatch):
    monkeypatch.setenv("BBH_CACHE", str(tmp_path / "nowhere"))
    monkeypatch.delenv("BBH_DATA", raising=False)
    arguments = ["run", "mnist", "--preset", "paper", "--dry-run", "--out", str(tmp_path / "out")]
    result = runner.invoke(app, [*arguments, "--seed", "0", "--seed", "1"])
    assert result.exit_code == 0, result.output
    # The network's, and as many parameters of MAP and dropout.
    shown = unwrapped(result.output)
    assert shown.count("431,080") == len(METHODS) + 2
    assert "222,331,368" in shown
    assert "55,000 (100 epochs of 550)" in shown
    assert "seed 1 " in shown
    assert "12 runs; nothing was trained" in shown
    assert max(map(len, result.output.splitlines())) <= console.width
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["run", "nothing"], "there is no study 'nothing'"),
        (["run", "minst"], "(did you mean 'mnist'?)"),
        (["run", "digits", "--method", "best"], "digits has no 'best'"),
        (["run", "digits", "--method", "BBH"], "(did you mean 'bbh'?)"),
        (["run", "digits", "--preset", "paper"], "no preset 'paper'"),
        (["run", "digits", "--preset", "corected"], "(did you mean 'corrected'?)"),
        (["run", "digits", "--set", "zz=3"], "--set zz=3: write key=value with one of"),
        (["run", "digits", "--set", "epoch=3"], "(did you mean 'epochs'?)"),
        (["run", "digits", "--set", "epochs"], "--set epochs: write key=value"),
        (["run", "digits", "--method", "bbh", "--set", "generator=slice"], "mean 'sliced'?)"),
        (["run", "digits", "--set", "epochs=many"], "the value must be int"),
        (["run", "digits", "--set", "epochs=0"], "epochs=0: give a positive"),
        (["run", "digits", "--set", "batch_size=0"], "batch_size=0: give a positive"),
        (["run", "digits", "--set", "learning_rate=-1"], "learning_rate=-1.0: give a positive"),
        (["run", "digits", "--set", "learning_rate=nan"], "learning_rate=nan: give a positive"),
        (["run", "digits", "--set", "temperature=inf"], "temperature=inf: give a finite number"),
        (["run", "digits", "--set", "gradient_clip=-1"], "gradient_clip=-1.0: give a finite"),
        (["run", "digits", "--set", "anneal_start=nan"], "anneal_start=nan: give a finite"),
        (["run", "digits", "--set", "prior_scale=0"], "prior_scale=0.0: give a positive"),
        (["run", "digits", "--set", "prediction_samples=0"], "prediction_samples=0: give a pos"),
        (["run", "digits", "--set", "hidden=16,-2"], "hidden=-2: give a positive"),
        (["run", "toy", "--set", "steps_per_epoch=0"], "steps_per_epoch=0"),
        (["run", "digits", "--set", "batch_size=1098"], "batch_size=1098: there are fewer"),
        (["run", "digits", "--set", "epochs=2"], "use --epochs, which shortens both"),
        (["run", "digits", "--method", "bbh", "--set", "generator=big"], "layerwise, sliced"),
        (["run", "digits", "--method", "map", "--set", "hidden=3,4"], "a setting of bbh, mixture."),
        (["run", "digits", "--set", "noise_scale=3"], "a setting of toy."),
        (["run", "mnist", "--set", "attack_steps=3"], "mnist-attacks, cifar5-attacks."),
        (["run", "digits", "--set", "method=map"], "key=value with one of"),
        (["run", "digits", "--device", "abacus"], "choose one of auto, cpu, cuda"),
        (["data", "check", "letters"], "there is no data set 'letters'"),
        (["data", "fetch", "notmnits"], "(did you mean 'notmnist'?)"),
        (["bench", "cp"], "(did you mean 'cpu'?)"),
    ],
)
def test_wrong_usage_is_one_line_with_the_remedy(arguments, problem, ended):
    code, said = ended(*arguments)
    assert code == 2
    assert said.startswith("bbh: ")
    assert problem in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["run", "digits", "--out", "/proc/nowhere"], "cannot be written to: No such file"),
        (["run", "digits", "--out", __file__], "cannot be written to: Not a directory"),
        (["run", "mnist", "--data", "/nowhere"], "does not exist"),
    ],
)
def test_other_errors_are_one_line_too(arguments, problem, ended):
    code, said = ended(*arguments)
    assert code == 1
    assert problem in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "hint"), [(["rnu"], "'run'"), (["run", "toy", "--metod", "map"], "--method")]
)
def test_unknown_commands_and_options_are_usage_errors(arguments, hint):
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert hint in unwrapped(result.output)


def test_a_true_process_reports_errors_on_one_line():
    done = command("run", "digits", "--set", "epochs")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("bbh: --set epochs")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("bbh run ", list(STUDIES)),
        ("bbh run mnist-n", ["mnist-noise"]),
        ("bbh run mnist-generators --method s", ["single", "sliced"]),
        ("bbh run toy --seed 3 --method m", ["map", "mnf"]),
        ("bbh run toy --preset ", ["corrected", "legacy"]),
        ("bbh run toy --device c", ["cpu", "cuda"]),
        (
            "bbh run toy --set noise_",
            ["noise_dim=", "noise_shared=", "noise_constant_norm=", "noise_scale="],
        ),
        ("bbh data fetch not", ["notmnist"]),
    ],
)
def test_completion(line, offered):
    environment = {
        "_BBH_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    result = runner.invoke(app, [], prog_name="bbh", env=environment)
    assert result.output.split() == offered


def test_data_are_listed_and_checked(data_dir, monkeypatch):
    monkeypatch.setenv("BBH_DATA", str(data_dir))
    assert "mnist/train-images-idx3-ubyte: " in runner.invoke(app, ["data", "list"]).output
    checked = runner.invoke(app, ["data", "check", "mnist"])
    assert checked.exit_code == 0, checked.output
    assert checked.output.count("good") == 4


def test_words_in_brackets_are_shown_as_they_are(tmp_path):
    done = command("report", "x[/b]")
    assert done.returncode == 1
    assert done.stderr.startswith("bbh: there is no folder x[/b]:")
    folder = tmp_path / "[bold]out"
    result = runner.invoke(app, [*MAP, "--epochs", "1", "--out", str(folder)])
    assert f"Records: {folder}/digits/corrected" in result.output


def test_settings_by_name():
    config = find_study("digits").row("bbh")
    config = config.with_words(["learning_rate=0.5", "noise_shared=true", "hidden=3,4"])
    assert config.training.learning_rate == 0.5
    assert (config.flat["noise_shared"], config.flat["hidden"]) == (True, (3, 4))
    with pytest.raises(ConfigError, match="true or false"):
        config.with_words(["noise_shared=maybe"])


def test_a_study_that_is_registered_is_known_everywhere(tmp_path, monkeypatch):
    rows = {"tiny": find_study("digits").row("map").with_settings(epochs=3, anneal_end=3.0)}
    mine = Study("mine", "My study", {"corrected": rows}, {"tiny": "Tiny network"})
    monkeypatch.setitem(STUDIES, "mine", mine)
    arguments = ["run", "mine", "--device", "cpu", "--out", str(tmp_path)]
    assert "Tiny network" in runner.invoke(app, [*arguments, "--dry-run"]).output
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "mine 1/1 Tiny network, seed 0: err" in result.output
    page = tmp_path / "report.html"
    assert runner.invoke(app, ["report", str(tmp_path), "--out", str(page)]).exit_code == 0
    text = page.with_suffix(".md").read_text()
    assert "## My study, preset corrected" in text
    assert "| Tiny network |" in text


@pytest.mark.slow
def test_rows_get_only_the_settings_they_have(tmp_path):
    arguments = ["run", "digits", "--method", "map", "--method", "bbb", "--epochs", "1"]
    arguments += ["--set", "initial_scale=0.1", "--device", "cpu", "--jobs", "2"]
    result = runner.invoke(app, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    map_, bbb = (
        Record.read(tmp_path / "digits" / "corrected" / row / "record.json").config
        for row in ("map-0", "bbb-0")
    )
    assert bbb["initial_scale"] == 0.1
    assert "initial_scale" not in map_
    assert map_.keys() - bbb.keys() == {"penalised"}


def test_paper_presets_are_the_papers():
    bbh = find_study("mnist").row("bbh", "paper").flat
    assert (bbh["epochs"], bbh["batch_size"], bbh["learning_rate"]) == (100, 100, 1e-4)
    assert (bbh["num_samples"], bbh["likelihood_samples"]) == (5, 1)
    assert bbh["divergence"] == "nearest_neighbour"
    assert (bbh["hidden"], bbh["spread"], bbh["noise_dim"]) == ((64, 256, 512), 0.0, 1)
    assert find_study("mnist").row("ensemble", "paper").flat["num_members"] == 10


def test_records_of_another_schema_are_refused(tmp_path):
    path = tmp_path / "record.json"
    for content, problem in (
        ("{", "no record"),
        ("[]", "no record"),
        (json.dumps({"schema": 99}), "schema 99"),
        (json.dumps({"schema": 1, "study": "mnist"}), "lacks or adds fields"),
    ):
        path.write_text(content)
        with pytest.raises(RecordError, match=problem):
            Record.read(path)


@pytest.mark.slow
def test_the_demo_compares_all_six_methods_and_reports(tmp_path):
    arguments = ["demo", "--epochs", "1", "--seed", "5", "--out", str(tmp_path)]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    records = [Record.read(path) for path in tmp_path.rglob("record.json")]
    for study, methods in (("digits", METHODS), ("toy", (*METHODS, "nuts"))):
        found = [record.method for record in records if record.study == study]
        assert sorted(found) == sorted(methods)
    assert {record.seed for record in records} == {5}
    said = " ".join(result.output.split())
    assert "has the lowest distance of the mean from the true curve" in said
    assert "Bayes by Hypernet is behind in:" in said
    page = tmp_path / "report.html"
    assert result.output.splitlines()[-1] == f"Report: {page}"
    assert "bbhPlayground" in page.read_text(encoding="utf-8")
    assert page.stat().st_size < 6e6


def test_the_demo_looks_at_both_studies_before_it_trains(tmp_path, ended):
    make_record("bbh", study="digits").write(tmp_path / "digits" / "corrected" / "bbh-0")
    code, said = ended("demo", "--epochs", "1", "--out", str(tmp_path))
    assert code == 2
    assert "is of a run with epochs=40, not 1" in said
    assert not (tmp_path / "toy").exists()


def test_fetching_names_the_files_it_got(monkeypatch):
    fetched = []
    monkeypatch.setattr(Source, "fetch", lambda self: fetched.append(self.name) or self.name)
    result = runner.invoke(app, ["data", "fetch", "notmnist"])
    assert result.exit_code == 0, result.output
    assert fetched == result.output.split() == list(NOTMNIST)


@pytest.mark.slow
def test_runs_side_by_side_are_the_runs_one_by_one(tmp_path):
    arguments = ["run", "digits", "--method", "map", "--seed", "0", "--seed", "1"]
    arguments += ["--epochs", "1", "--device", "cpu"]
    one_by_one = runner.invoke(app, [*arguments, "--out", str(tmp_path / "a")])
    together = runner.invoke(app, [*arguments, "--jobs", "2", "--out", str(tmp_path / "b")])
    assert (one_by_one.exit_code, together.exit_code) == (0, 0), together.output
    assert "digits 2/2" in together.output
    for seed in (0, 1):
        place = f"digits/corrected/map-{seed}"
        first, second = (
            Record.read(tmp_path / name / place / "record.json") for name in ("a", "b")
        )
        assert first.metrics["nll"] == pytest.approx(second.metrics["nll"], rel=1e-4)
        assert "err" in (tmp_path / "b" / place / "log.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_failure_beside_others_names_its_log(tmp_path):
    arguments = ["run", "digits", "--method", "map", "--method", "bbb", "--epochs", "1"]
    arguments += ["--set", "learning_rate=1e30", "--device", "cpu", "--jobs", "2"]
    result = runner.invoke(app, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.count("failed,") == 2
    assert "log.txt" in result.output


def test_jobs_are_checked_before_any_starts(tmp_path):
    arguments = ["run", "digits", "--method", "map", "--jobs", "2", "--device", "abacus"]
    result = runner.invoke(app, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "choose one of auto, cpu, cuda" in str(result.exception)
    assert list(tmp_path.iterdir()) == []
