"""The command line: through Typer's runner, and once as a true process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bbh.cli import app
from bbh.studies.config import METHODS, Config, ConfigError
from bbh.studies.datasets.sources import NOTMNIST, Source
from bbh.studies.presets import preset_config
from bbh.studies.record import Record, RecordError

runner = CliRunner()


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    code = "from bbh.cli import entry_point; entry_point()"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True
    )


def test_version_and_help():
    assert runner.invoke(app, ["--version"]).output.startswith("bbh 0.")
    shown = runner.invoke(app, ["--help"]).output
    assert all(name in shown for name in ("demo", "run", "data"))


def test_a_run_writes_a_record_that_can_be_read_again(tmp_path):
    arguments = ["run", "digits", "--method", "map", "--seed", "3", "--set", "epochs=2"]
    arguments += ["--device", "cpu", "--out", str(tmp_path)]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "MAP" in result.output
    folder = tmp_path / "digits" / "corrected" / "map-3"
    assert sorted(file.name for file in folder.iterdir()) == ["arrays.npz", "record.json"]
    record = Record.read(folder / "record.json")
    assert (record.study, record.method, record.seed) == ("digits", "map", 3)
    assert record.config["epochs"] == len(record.history) == 2
    assert {"error", "nll", "brier", "ece", "entropy_auc", "outlier_entropy_auc"} <= set(
        record.metrics
    )
    assert {"ood_auroc", "ood_auroc_mi", "seconds", "steps_per_second"} <= set(record.metrics)
    # Finished runs are kept when resuming: the same file, unread by training.
    before = (folder / "record.json").stat().st_mtime_ns
    assert runner.invoke(app, [*arguments, "--resume"]).exit_code == 0
    assert (folder / "record.json").stat().st_mtime_ns == before


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    from bbh.studies import classification

    arguments = ["run", "digits", "--method", "map", "--set", "epochs=3", "--device", "cpu"]
    whole = runner.invoke(app, [*arguments, "--out", str(tmp_path / "whole")])
    assert whole.exit_code == 0, whole.output

    real = classification.DeviceBatches.__iter__
    epochs = []

    def interrupted(self):
        epochs.append(1)
        if len(epochs) == 3:
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(classification, "_CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(classification.DeviceBatches, "__iter__", interrupted)
    parts = [*arguments, "--out", str(tmp_path / "parts")]
    assert runner.invoke(app, parts).exit_code != 0
    monkeypatch.setattr(classification.DeviceBatches, "__iter__", real)
    assert runner.invoke(app, [*parts, "--resume"]).exit_code == 0
    place = Path("digits", "corrected", "map-0", "record.json")
    first, second = (Record.read(tmp_path / name / place) for name in ("whole", "parts"))
    quality = ("error", "nll", "ood_auroc")
    assert [first.metrics[name] for name in quality] == [second.metrics[name] for name in quality]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["run", "nothing"], "there is no study 'nothing'"),
        (["run", "digits", "--method", "best"], "digits has no 'best'"),
        (["run", "digits", "--preset", "paper"], "no preset 'paper'"),
        (["run", "digits", "--set", "epoch=3"], "key=value with one of"),
        (["run", "digits", "--set", "epochs=many"], "the value must be int"),
        (["run", "digits", "--method", "bbh", "--set", "generator=big"], "layerwise, sliced"),
        (["run", "mnist", "--data", "/nowhere"], "does not exist"),
        (["data", "check", "letters"], "there is no data set 'letters'"),
    ],
)
def test_errors_are_one_line_with_the_remedy(arguments, problem):
    result = runner.invoke(app, arguments)
    assert result.exit_code == 1
    assert problem in str(result.exception)


def test_a_true_process_reports_errors_on_one_line():
    done = command("run", "digits", "--set", "epochs")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("bbh: --set epochs")
    assert done.stderr.count("\n") == 1


def test_data_are_listed_and_checked(data_dir, monkeypatch):
    monkeypatch.setenv("BBH_DATA", str(data_dir))
    assert "mnist/train-images-idx3-ubyte: " in runner.invoke(app, ["data", "list"]).output
    checked = runner.invoke(app, ["data", "check", "mnist"])
    assert checked.exit_code == 0, checked.output
    assert checked.output.count("good") == 4


def test_settings_by_name():
    config = Config().changed(["learning_rate=0.5", "noise_shared=true", "hidden=3,4"])
    assert (config.learning_rate, config.noise_shared, config.hidden) == (0.5, True, (3, 4))
    with pytest.raises(ConfigError, match="true or false"):
        config.changed(["noise_shared=maybe"])


def test_paper_presets_are_the_papers():
    bbh = preset_config("mnist", "bbh", "paper")
    assert (bbh.epochs, bbh.batch_size, bbh.learning_rate) == (100, 100, 1e-4)
    assert (bbh.num_samples, bbh.likelihood_samples, bbh.divergence) == (5, 1, "nearest_neighbour")
    assert (bbh.hidden, bbh.spread, bbh.noise_dim) == ((64, 256, 512), 0.0, 1)
    assert preset_config("mnist", "ensemble", "paper").num_members == 10


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


def test_the_demo_compares_all_six_methods(tmp_path):
    arguments = ["demo", "--epochs", "1", "--seed", "5", "--out", str(tmp_path)]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    records = [Record.read(path) for path in tmp_path.rglob("record.json")]
    assert sorted(record.method for record in records) == sorted(METHODS)
    assert {(record.seed, len(record.history)) for record in records} == {(5, 1)}


def test_fetching_names_the_files_it_got(monkeypatch):
    fetched = []
    monkeypatch.setattr(Source, "fetch", lambda self: fetched.append(self.name) or self.name)
    result = runner.invoke(app, ["data", "fetch", "notmnist"])
    assert result.exit_code == 0, result.output
    assert fetched == result.output.split() == list(NOTMNIST)
