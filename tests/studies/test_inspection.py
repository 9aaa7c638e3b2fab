"""What runs leave behind for `bbh inspect`, and what it makes of that."""

import json

import pytest
import torch
from typer.testing import CliRunner

import bbh
from bbh_studies.cli import app
from bbh_studies.problems.digits import digits_network
from bbh_studies.record import Record, RecordError
from bbh_studies.report import inspection_table, write_report
from bbh_studies.run.leftovers import open_posterior
from bbh_studies.run.plan import plan
from bbh_studies.settings.words import ConfigError
from studies.report_records import write_records

runner = CliRunner()
BBB = ("run", "digits", "--method", "bbb", "--epochs", "1", "--device", "cpu")
FIGURES = ["correlation.png", "inspection.json", "marginals.png", "spread.png"]


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def numbers(folder):
    return json.loads((folder / "inspection.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_run_keeps_its_posterior_for_a_look_later(tmp_path):
    result = runner.invoke(app, [*BBB, "--keep-posterior", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    folder = tmp_path / "digits" / "corrected" / "bbb-0"
    assert files(folder) == ["arrays.npz", "posterior.safetensors", "record.json"]
    looked = runner.invoke(app, ["inspect", str(folder), "--draws", "60", "--device", "cpu"])
    assert looked.exit_code == 0, looked.output
    assert "60 draws of 13,706 weights; modes and correlations of 0.weight" in looked.output
    assert looked.output.splitlines()[-1] == f"Figures: {folder / 'inspection'}"
    assert files(folder / "inspection") == FIGURES
    found = numbers(folder / "inspection")
    # 500 test images of the study.
    assert (found["draws"], found["diversity"]["inputs"]) == (60, 500)

    # The file alone, with another tensor and no data.
    file = folder / "posterior.safetensors"
    options = ["--draws", "20", "--tensor", "8.weight", "--weights-only", "--out", str(tmp_path)]
    assert runner.invoke(app, ["inspect", str(file), *options]).exit_code == 0
    found = numbers(tmp_path)
    assert (found["tensor"], found["diversity"]) == ("8.weight", None)

    # Replaced by a run that was not asked to, nothing stays that would be of another posterior.
    assert runner.invoke(app, [*BBB, "--force", "--out", str(tmp_path)]).exit_code == 0
    assert files(folder) == ["arrays.npz", "record.json"]


@pytest.mark.slow
def test_a_run_looks_at_its_posterior_without_changing_its_numbers(tmp_path):
    arguments = [*BBB, "--method", "map"]
    plain = runner.invoke(app, [*arguments, "--out", str(tmp_path / "plain")])
    looked = runner.invoke(app, [*arguments, "--inspect", "--out", str(tmp_path / "looked")])
    assert (plain.exit_code, looked.exit_code) == (0, 0), looked.output
    before, after = (
        Record.read(tmp_path / name / "digits/corrected/bbb-0/record.json").metrics
        for name in ("plain", "looked")
    )
    timed = {"seconds", "steps_per_second", "peak_memory_bytes"}
    assert {k: v for k, v in before.items() if k not in timed} == {
        k: v for k, v in after.items() if k not in timed
    }
    folder = tmp_path / "looked" / "digits" / "corrected"
    assert files(folder / "bbb-0" / "inspection") == FIGURES
    assert numbers(folder / "bbb-0" / "inspection")["draws"] == 1000
    # A point has nothing to look at.
    assert files(folder / "map-0") == ["arrays.npz", "record.json"]


@pytest.mark.slow
def test_toy_functions_are_compared_on_the_grid(tmp_path):
    arguments = ["run", "toy", "--method", "bbb", "--epochs", "1", "--device", "cpu"]
    result = runner.invoke(app, [*arguments, "--inspect", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    found = numbers(tmp_path / "toy" / "corrected" / "bbb-0" / "inspection")
    assert found["diversity"]["inputs"] == 500
    assert found["diversity"]["disagreement"] is None
    assert found["tensor"] == "0.weight"


def test_a_finished_run_cannot_give_what_it_did_not_keep(tmp_path):
    assert runner.invoke(app, [*BBB, "--out", str(tmp_path)]).exit_code == 0
    for flag, problem in (
        ("--keep-posterior", "kept no posterior"),
        ("--inspect", "not inspected"),
    ):
        for option in ((), ("--resume",)):
            result = runner.invoke(app, [*BBB, *option, flag, "--out", str(tmp_path)])
            assert result.exit_code != 0
            assert problem in str(result.exception)


@pytest.mark.slow
def test_jobs_are_asked_for_the_same(tmp_path):
    arguments = [*BBB, "--seed", "0", "--seed", "1", "--jobs", "2", "--keep-posterior"]
    result = runner.invoke(app, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert len(list(tmp_path.rglob("posterior.safetensors"))) == 2


def test_a_file_of_ones_own_needs_its_network(tmp_path, monkeypatch):
    posterior = bbh.methods.bayes_by_backprop(digits_network(), bbh.likelihoods.Categorical())
    bbh.save(posterior, tmp_path / "mine.safetensors")
    with pytest.raises(ConfigError, match="--network module:function"):
        open_posterior(tmp_path / "mine.safetensors")
    source = "from bbh_studies.problems.digits import digits_network as make\nnumber = lambda: 3\n"
    (tmp_path / "my_models.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    loaded, inputs = open_posterior(tmp_path / "mine.safetensors", network="my_models:make")
    assert inputs is None
    torch.testing.assert_close(loaded.state_dict(), posterior.state_dict())
    for where, problem in (
        ("my_models", "write module:function"),
        ("nowhere:make", "No module named 'nowhere'"),
        ("my_models:missing", "has no attribute 'missing'"),
        ("my_models:number", "it made a int, not a network"),
    ):
        with pytest.raises(ConfigError, match=problem):
            open_posterior(tmp_path / "mine.safetensors", network=where)


def test_what_cannot_be_had_is_said_before_training(tmp_path):
    with pytest.raises(FileNotFoundError, match="--keep-posterior"):
        open_posterior(tmp_path)
    with pytest.raises(ConfigError, match="map of preset legacy has penalised=kernels"):
        plan("mnist", variants=["map"], preset="legacy", keep_posterior=True)


@pytest.mark.slow
def test_the_report_shows_inspected_runs_side_by_side(tmp_path):
    write_records(tmp_path / "runs")
    without = write_report([tmp_path / "runs"], tmp_path / "without.html").read_text(
        encoding="utf-8"
    )
    assert "Posteriors over weights" not in without
    posterior = bbh.methods.bayes_by_backprop(digits_network(), bbh.likelihoods.Categorical())
    looked = bbh.inspect.look(posterior, torch.rand(5, 1, 8, 8), num_samples=50)
    for path in sorted((tmp_path / "runs").rglob("record.json")):
        record = Record.read(path)
        if (record.study, record.seed) == ("mnist", 0) and record.variant in ("mnf", "bbh"):
            looked.save(path.parent / "inspection")
    page = write_report([tmp_path / "runs"], tmp_path / "with.html").read_text(encoding="utf-8")
    section = page[page.index("Posteriors over weights") :]
    order = [
        section.index(f'alt="{what}, {row}."')
        for what in ("Correlations of the first layer", "Its first weights")
        for row in ("MNF", "Bayes by Hypernet")
    ]
    assert order == sorted(order)
    assert "MNF: 0% of pairs correlated beyond ±0.5 (independent Gaussians: 0.0%); " in section


@pytest.mark.slow
def test_a_broken_inspection_is_named(tmp_path):
    write_records(tmp_path)
    path = next(path for path in tmp_path.rglob("record.json") if Record.read(path).seed == 0)
    folder = path.parent / "inspection"
    folder.mkdir()
    (folder / "inspection.json").write_text("{}")
    (folder / "correlation.png").write_bytes(b"")
    with pytest.raises(RecordError, match="no inspection of this version"):
        write_report([tmp_path], tmp_path / "report.html")


def test_table_of_inspections(tmp_path):
    content = {
        "bimodality": {"share_below_0.05": 0.444},
        "excess_kurtosis": {"quantiles": [-1.0, -0.853, 1.0]},
        "correlation": {"share_beyond_0.5": 0.973},
        "effective_dimension": {"estimate": 2.14, "independent": 9434.2},
        "diversity": {"disagreement": 0.1021},
        "spread": {"quantiles": [0.1, 0.7428, 1.2]},
        "signs_of_collapse": [{"name": "unused noise"}, {"name": "narrow tensors"}],
    }
    folder = tmp_path / "digits" / "corrected" / "bbh-0" / "inspection"
    folder.mkdir(parents=True)
    (folder / "inspection.json").write_text(json.dumps(content))
    table = inspection_table(tmp_path, "digits", "corrected", "bbh")
    assert table.splitlines()[0] == "|  | Bayes by Hypernet |"
    found = [line.split("|")[2].strip() for line in table.splitlines()[2:]]
    signs = "unused noise, narrow tensors"
    assert found == ["44%", "97%", "-0.85", "0.743", "2.1", "9,434", "10.2%", signs]
    # Regression has no classes to differ in.
    changes = {"diversity": None, "signs_of_collapse": []}
    (folder / "inspection.json").write_text(json.dumps(content | changes))
    table = inspection_table(tmp_path, "digits", "corrected", "bbh").splitlines()
    assert table[-2:] == ["| two draws predict other classes |  |", "| signs of collapse | none |"]
    # A row that was not looked at: no half a table.
    assert inspection_table(tmp_path, "digits", "corrected", "mnf", "bbh") == ""
