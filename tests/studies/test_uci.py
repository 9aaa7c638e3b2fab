"""The UCI study: its data, its runs, and its table."""

import math
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

import bbh
from bbh_studies.cli import app
from bbh_studies.datasets import DataError
from bbh_studies.datasets.uci import UCI, UciData, load_uci
from bbh_studies.problems.uci.study import ROWS, Uci
from bbh_studies.problems.uci.train_and_measure import Steps, measure
from bbh_studies.record import Record
from bbh_studies.report import uci_table
from bbh_studies.report.uci_table import mean_ranks
from bbh_studies.run.plan import plan
from bbh_studies.settings.words import ConfigError
from bbh_studies.studies import find_study

runner = CliRunner()


def write_set(folder: Path, name: str, num: int = 60) -> np.ndarray:
    """A small set in the published layout, with a constant column; returns its table."""
    random = np.random.default_rng(0)
    place = folder / "uci" / UCI[name].folder
    place.mkdir(parents=True)
    inputs = random.normal(3, 2, size=(num, UCI[name].num_inputs))
    inputs[:, 1] = 7.0
    targets = 100 + 20 * inputs[:, 0] + random.normal(size=num)
    table = np.column_stack([inputs, targets])
    np.savetxt(place / "data.txt", table)
    np.savetxt(place / "index_features.txt", np.arange(UCI[name].num_inputs))
    np.savetxt(place / "index_target.txt", [UCI[name].num_inputs])
    for split in range(2):
        order = random.permutation(num)
        np.savetxt(place / f"index_train_{split}.txt", order[6:])
        np.savetxt(place / f"index_test_{split}.txt", order[:6])
    return table


@pytest.fixture
def folder(tmp_path):
    for name in ("yacht", "energy"):
        write_set(tmp_path / "data", name)
    return tmp_path / "data"


class TestData:
    def test_a_split(self, tmp_path):
        table = write_set(tmp_path, "yacht")
        data = load_uci("yacht", 1, tmp_path)
        rows = np.loadtxt(tmp_path / "uci" / "yacht" / "index_test_1.txt").astype(int)
        assert np.allclose(data.test_targets[:, 0], table[rows, -1])
        assert data.train_inputs.shape == (54, 6)
        varying = [0, 2, 3, 4, 5]
        assert torch.allclose(data.train_inputs.mean(0), torch.zeros(6), atol=1e-5)
        assert torch.allclose(
            data.train_inputs.std(0, correction=0)[varying], torch.ones(5), atol=1e-4
        )
        assert not data.train_inputs[:, 1].any()  # a column with one value only
        # Targets are left in their units.
        assert data.train_targets.mean() > 100

    def test_validation_never_sees_the_test_part(self, folder):
        test = load_uci("yacht", 0, folder)
        held_out = load_uci("yacht", 0, folder, validation=True)
        assert len(held_out.test_targets) == 11  # a fifth of 54
        seen = torch.cat([held_out.train_targets, held_out.test_targets])
        assert torch.equal(seen.sort(0).values, test.train_targets.sort(0).values)
        # Inputs are standardised by what is left for training.
        assert torch.allclose(held_out.train_inputs.mean(0), torch.zeros(6), atol=1e-5)

    def test_missing_files_are_explained(self, folder):
        with pytest.raises(DataError, match=r"not fetched.*--data or BBH_DATA"):
            load_uci("boston", 0, folder)
        with pytest.raises(DataError, match=r"no split 2: the seed of a run is its split"):
            load_uci("yacht", 2, folder)

    @pytest.mark.parametrize(
        ("name", "content", "problem"),
        [
            ("data.txt", "1 2\n3\n", "cannot be read as numbers"),
            ("data.txt", "1 2 x\n", "cannot be read as numbers"),
            ("data.txt", " ".join(["nan"] * 7), "not finite"),
            ("index_features.txt", "0 7", "does not have"),
            ("index_train_0.txt", "-1 2", "does not have"),
            ("index_test_0.txt", "0 60", "does not have"),
        ],
    )
    def test_damaged_files_are_named(self, tmp_path, name, content, problem):
        write_set(tmp_path, "yacht")
        path = tmp_path / "uci" / "yacht" / name
        path.write_text(content)
        with pytest.raises(DataError, match=problem) as raised:
            load_uci("yacht", 0, tmp_path)
        assert str(path) in str(raised.value)

    @pytest.mark.skipif("BBH_DATA" not in os.environ, reason="set BBH_DATA to a folder with uci/")
    @pytest.mark.parametrize(
        ("name", "train", "test"),
        [("boston", 455, 51), ("naval", 10_741, 1_193), ("protein", 41_157, 4_573)],
    )
    def test_published_sizes(self, name, train, test, tmp_path):
        folder = Path(os.environ["BBH_DATA"])
        if not (folder / "uci" / UCI[name].folder).exists():
            packed = folder / "uci" / "uci.tar.xz"
            if not packed.exists():
                pytest.skip("BBH_DATA has no UCI sets")
            with tarfile.open(packed) as archive:
                wanted = [one for one in archive if f"/{UCI[name].folder}/" in f"/{one.name}"]
                archive.extractall(tmp_path, wanted, filter="data")
            folder = tmp_path
        data = load_uci(name, UCI[name].num_splits - 1, folder)
        assert data.train_inputs.shape == (train, UCI[name].num_inputs)
        assert data.test_inputs.shape == (test, UCI[name].num_inputs)


class TestBatches:
    @pytest.mark.parametrize(("num", "batch", "steps"), [(10, 4, 7), (100, 10, 3), (3, 8, 5)])
    def test_every_pass_sees_every_example_once(self, num, batch, steps):
        values = torch.arange(num)
        batches = list(Steps(values, values, batch, steps))
        size = min(batch, num)
        assert len(batches) == len(Steps(values, values, batch, steps)) == steps
        assert all(len(one) == size for one, _ in batches)
        seen = torch.cat([one for one, _ in batches])
        for first in range(0, len(seen) - num + 1, num):
            assert sorted(seen[first : first + num].tolist()) == list(range(num))


def test_metrics_of_a_prediction_that_ignores_inputs():
    train, test = torch.randn(50, 1) * 3 + 10, torch.randn(20, 1) * 3 + 11
    posterior = bbh.methods.maximum_a_posteriori(torch.nn.Linear(2, 1), Uci().likelihood())
    found = measure(posterior, UciData(torch.randn(50, 2), train, torch.randn(20, 2), test, ""), 1)
    normal = stats.norm(train.mean(), train.std(correction=0))
    assert found["constant_nll"] == pytest.approx(-normal.logpdf(test.numpy()).mean(), rel=1e-4)
    assert found["constant_rmse"] == pytest.approx(
        float((test - train.mean()).square().mean().sqrt()), rel=1e-5
    )
    z = (test.numpy() - float(train.mean())) / float(train.std(correction=0))
    closed = z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi)
    expected = float(train.std(correction=0)) * closed.mean()
    assert found["constant_crps"] == pytest.approx(expected, rel=1e-4)


class TestRuns:
    def test_all_sets_and_splits_by_default(self, tmp_path):
        runs = plan("uci", variants=["map"], out=tmp_path)
        assert len(runs) == 5 * 20 + 4 * 5
        assert len({run.folder for run in runs}) == len(runs)
        first = runs[0]
        assert first.folder == tmp_path / "uci" / "defaults" / "boston" / "map-0"
        assert first.title == "boston: MAP, seed 0"
        sizes = {run.part: run.config.make_network()[0].out_features for run in runs}
        assert sizes["dataset=protein",] == 100
        assert {size for part, size in sizes.items() if part != ("dataset=protein",)} == {50}

    def test_some_sets(self):
        runs = plan("uci", variants=["map"], seeds=[3], settings=["dataset=yacht,wine"])
        assert [run.part for run in runs] == [("dataset=yacht",), ("dataset=wine",)]
        with pytest.raises(ValueError, match=r"dataset=mars: choose one of boston"):
            plan("uci", settings=["dataset=mars"])

    @pytest.mark.parametrize("row", ROWS)
    def test_settings_are_the_librarys_defaults(self, row):
        torch.manual_seed(0)
        ours = ROWS[row].build_posterior()
        make = bbh.methods.registered()[ours.recipe.method]
        default = make(Uci().make_network(), Uci().likelihood())

        def settled(posterior):
            # What arguments that are left open mean, where the posterior does not say it.
            found = posterior.recipe.arguments | posterior.chosen | {"prior": posterior.prior}
            open_ones = {"num_samples": 1, "rate": 0.5}
            found = {
                name: open_ones.get(name) if one is None else one for name, one in found.items()
            }
            # What the ensemble is given to make its members with is no setting.
            return {name: repr(one) for name, one in found.items() if name != "make_network"}

        assert settled(ours) == settled(default)

    def test_records_and_tables(self, folder, tmp_path):
        words = ["run", "uci", "--method", "map", "--method", "bbb", "--seed", "1"]
        words += ["--set", "dataset=yacht,energy", "--epochs", "2", "--set", "steps_per_epoch=20"]
        words += ["--data", str(folder), "--device", "cpu", "--out", str(tmp_path / "runs")]
        result = runner.invoke(app, words)
        assert result.exit_code == 0, result.output
        assert "uci 1/4 yacht: MAP, seed 1: RMSE" in result.output
        assert "uci, dataset=energy, preset defaults" in result.output
        paths = sorted((tmp_path / "runs").rglob("record.json"))
        assert len(paths) == 4
        # Hundreds of them are kept in a repository.
        assert all(path.stat().st_size < 3000 for path in paths)
        records = [Record.read(path) for path in paths]
        names = {"test_rmse", "nll", "crps", "coverage_95", "constant_nll", "seconds"}
        assert all(names <= one.metrics.keys() for one in records)
        assert {one.data["split"] for one in records} == {"test"}
        # A line with little noise: learned in two epochs better than its mean tells.
        assert all(one.metrics["test_rmse"] < one.metrics["constant_rmse"] for one in records)
        page = tmp_path / "report.html"
        report = runner.invoke(app, ["report", str(tmp_path / "runs"), "--out", str(page)])
        assert report.exit_code == 0, report.output
        text = page.with_suffix(".md").read_text()
        assert "## UCI regression, preset defaults, dataset=yacht" in text
        assert "--set dataset=yacht" in text
        assert "| Bayes by Backprop |" in uci_table(records, "defaults")


def test_width_and_depth_are_settings():
    deep = find_study("uci").row("bbh").with_settings(dataset="yacht", units=7, layers=2)
    network = deep.problem.make_network()
    assert [tuple(one.shape) for one in network.parameters()] == [
        *[(7, 6), (7,), (7, 7), (7,), (1, 7), (1,)]
    ]
    with pytest.raises(ConfigError, match=r"layers=0: take at least one\."):
        find_study("uci").row("bbh").with_settings(layers=0).check()


def a_record(name: str, method: str, seed: int, nll: float, split: str = "test") -> Record:
    metrics = {
        "nll": nll,
        "test_rmse": 2 * nll,
        "crps": nll / 2,
        "coverage_95": 0.9 + seed / 100,
        "constant_nll": 5.0 + seed,
        "constant_rmse": 10.0,
        "constant_crps": 6.0,
    }
    config = find_study("uci").row(method).with_settings(dataset=name, split=split)
    return Record("uci", method, method, "defaults", seed, config.flat, metrics, [], {})


class TestTable:
    def test_means_errors_ranks_and_published_numbers(self):
        found = {
            ("boston", "map"): [8.0, 9.0],
            ("boston", "bbb"): [2.0, 2.0],
            ("boston", "bbh"): [1.0, 1.0],
            ("yacht", "map"): [1.0, 1.2],
            ("yacht", "bbb"): [3.0, 3.0],
            ("yacht", "bbh"): [2.5, 2.5],
        }
        records = [
            a_record(name, method, seed, nll)
            for (name, method), values in found.items()
            for seed, nll in enumerate(values)
        ]
        # A split that only one method has, and a validation run: neither may count.
        records += [a_record("boston", "map", 2, 50.0)]
        records += [a_record("boston", "map", 0, 70.0, split="validation")]
        nll, rmse, _, coverage = uci_table(records, "defaults").split(":\n\n")[1:]
        assert "| boston | yacht | mean rank |" in nll
        # Sample standard deviation √½ over √2 splits: 0.5.
        assert "| MAP | 8.50 ± 0.50 | **1.10 ± 0.10** | 2.00 |" in nll
        assert "| Bayes by Backprop | 2.00 ± 0.00 | 3.00 ± 0.00 | 2.50 |" in nll
        assert "| Bayes by Hypernet | **1.00 ± 0.00** | 2.50 ± 0.00 | 1.50 |" in nll
        assert "| Constant predictor | 5.50 ± 0.50 | 5.50 ± 0.50 |  |" in nll
        assert "| *Deep ensemble of 5 (Lakshminarayanan et al. 2017)* | 2.41 | 1.18 |  |" in nll
        assert "| MAP | 17.00 ± 1.00 | **2.20 ± 0.20** |" in rmse
        assert "(Hernández-Lobato & Adams 2015)* | 3.01 | 1.02 |" in rmse
        assert "| MAP | 0.91 ± 0.005 | 0.91 ± 0.005 |" in coverage
        assert "Splits: boston 2, yacht 2." in coverage
        validation = uci_table(records, "defaults", "split=validation")
        assert "| MAP | **70.00** | 1.00 |" in validation
        assert "Lakshminarayanan" not in validation
        assert uci_table(records, "paper") == ""

    def test_ranks_agree_with_scipy(self):
        random = np.random.default_rng(0)
        values = random.integers(0, 4, size=(7, 5)).astype(float)
        sets = [dict(zip("abcde", row, strict=True)) for row in values]
        expected = stats.rankdata(values, axis=1).mean(0)
        assert list(mean_ranks(sets).values()) == pytest.approx(list(expected))
