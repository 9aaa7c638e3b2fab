"""`bbh run cifar10-hmc`: HMC's predictions, the rows, and all of it from files to a report."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import bbh
from bbh import metrics
from bbh.network import trainable_parameters
from bbh.samples import size
from bbh_studies.arrays import read_arrays
from bbh_studies.cli import app
from bbh_studies.datasets import DataError, cifar10
from bbh_studies.datasets.cifar10 import CIFAR10, moments
from bbh_studies.datasets.cifar10_hmc import load_cifar10_hmc, read_hmc
from bbh_studies.problems.cifar10_hmc.network import FilterResponseResNet
from bbh_studies.problems.cifar10_hmc.train_and_measure import measure
from bbh_studies.record import Record
from bbh_studies.run.estimates import estimate
from bbh_studies.run.plan import plan
from bbh_studies.studies import find_study
from studies.tiny_cifar import PER_FILE, make_files, tiny_words, write_hmc

TINY = (
    *("blocks=1", "width=4", "batch_size=50", "prediction_samples=2", "hidden=4,8"),
    # Half the bits take longer on most CPUs.
    *("warm_start_epochs=1", "num_members=2", "precision=32-true"),
)
STUDY = find_study("cifar10-hmc")
METHODS = tuple(row for row in STUDY.rows() if row != "hmc")
runner = CliRunner()


@pytest.fixture
def hmc(data):
    """HMC's probabilities, in a file beside CIFAR-10 in miniature."""
    return write_hmc(data)


def run_tiny(data, out, *arguments: str, settings: tuple[str, ...] = TINY):
    words = ["run", "cifar10-hmc", "--data", str(data), "--out", str(out), "--device", "cpu"]
    words += tiny_words("cifar10-hmc", arguments, settings)
    result = runner.invoke(app, [*words, *arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return {path.parent.name: Record.read(path) for path in out.rglob("record.json")}, result.output


def rewrite(folder: Path, **arrays: np.ndarray) -> None:
    """The file of HMC's predictions with some of its arrays replaced."""
    path = folder / "hmc-cifar10" / "predictive.npz"
    with np.load(path) as stored:
        before = {name: stored[name] for name in stored.files}
    np.savez(path, **(before | arrays))


class TestData:
    def test_predictions_belong_to_the_test_images(self, data, hmc):
        found = load_cifar10_hmc(data)
        assert found.hmc is not None
        assert np.array_equal(found.hmc.numpy(), hmc)
        assert len(found.train_images) == 5 * PER_FILE
        # The first pixel tells the class, the second the file.
        assert (found.test_images[:, 0, 0, 0] * 255).round().tolist() == found.test_labels.tolist()
        assert set((found.test_images[:, 0, 0, 1] * 255).round().tolist()) == {5}
        assert found.facts["pixels"] == "not the publisher's: a copy that was recoded"
        assert found.facts["HMC's pixels"] == "the publisher's"

    def test_the_publishers_pixels_need_no_remark(self, data, hmc, monkeypatch):
        means, scales = moments(CIFAR10.read(data).train_images)
        monkeypatch.setattr(cifar10, "MEANS", tuple(means.tolist()))
        monkeypatch.setattr(cifar10, "SCALES", tuple(scales.tolist()))
        assert load_cifar10_hmc(data).facts.keys() == {"CIFAR-10", "HMC", "split"}

    def test_choosing_sees_neither_test_images_nor_hmc(self, data, hmc):
        found = load_cifar10_hmc(data).for_choosing()
        assert found.hmc is None
        assert (len(found.train_images), len(found.test_images)) == (180, 20)
        every = torch.cat([found.train_images, found.test_images])
        assert len(every.flatten(1).unique(dim=0)) == 200
        assert set((every[:, 0, 0, 1] * 255).round().tolist()) == {0, 1, 2, 3, 4}
        assert found.facts["split"] == "validation"
        assert not [name for name in found.facts if "HMC" in name]

    def test_a_missing_file_is_explained(self, data):
        with pytest.raises(
            DataError, match=r"no .*predictive.npz.*neurips_bdl.*--data or BBH_DATA"
        ):
            load_cifar10_hmc(data)

    def test_half_precision_is_read_too(self, data, hmc):
        rewrite(data, probabilities=hmc.astype(np.float16))
        found = load_cifar10_hmc(data).hmc
        assert found is not None
        assert np.allclose(found, hmc, rtol=1e-3)

    @pytest.mark.parametrize("kind", ["order", "shape", "sums", "negative", "missing", "noise"])
    def test_other_content_is_refused(self, data, hmc, kind):
        path = data / "hmc-cifar10" / "predictive.npz"
        labels = make_files()["test_batch"][1]
        expected = {
            "order": "in another order",
            "shape": r"holds probabilities \[39, 10\] of float32, where 40 test images",
            "sums": "sum to 1",
            "negative": "at least 0",
            "missing": "cannot be read",
            "noise": "cannot be read",
        }[kind]
        if kind == "order":
            rewrite(data, labels=np.roll(labels, 1))
        elif kind == "shape":
            rewrite(data, probabilities=hmc[1:])
        elif kind == "sums":
            rewrite(data, probabilities=hmc / 2)
        elif kind == "negative":
            rewrite(data, probabilities=hmc * np.where(hmc > 0.5, np.float32("nan"), 1))
        elif kind == "missing":
            np.savez(path, labels=labels)
        else:
            path.write_bytes(b"no archive")
        with pytest.raises(DataError, match=expected):
            load_cifar10_hmc(data)

    @pytest.mark.skipif("BBH_DATA" not in os.environ, reason="set BBH_DATA to a folder with data")
    def test_the_published_predictions(self):
        path = Path(os.environ["BBH_DATA"]) / "hmc-cifar10" / "predictive.npz"
        if not path.exists():
            pytest.skip("BBH_DATA has no hmc-cifar10/predictive.npz")
        with np.load(path) as stored:
            labels = torch.from_numpy(stored["labels"])
        probs = read_hmc(path, labels)
        found = measure(probs, labels.long(), probs)
        assert found["error"] == pytest.approx(8.56, abs=1e-9)
        assert found["nll"] == pytest.approx(0.2773, abs=1e-4)
        assert (found["hmc_agreement"], found["hmc_total_variation"]) == (1.0, 0.0)
        # The first row of the publishers' file is somewhere in ours.
        first = torch.tensor([7.150049787e-04, 9.493010293e-05, 1.078139544e-01, 1.124776006e-01])
        assert (probs[:, :4] - first).abs().amax(1).min() < 1e-9


class TestRows:
    def test_all_approximate_one_posterior(self):
        rows = STUDY.rows()
        assert list(rows) == [*METHODS, "hmc"]
        assert METHODS[:6] == ("map", "ensemble", "bbb", "dropout", "mnf", "bbh")
        for row, config in rows.items():
            network = config.make_network()
            assert isinstance(network, FilterResponseResNet)
            assert size(config.prior.shapes(network)) == 274_042
            assert config.prior.make().scale == pytest.approx(math.sqrt(0.2))
            temperatures = {"bbb": 0.1, "mnf": 0.1, "bbh": 0.1, "mixture": 0.03}
            assert config.training.temperature == temperatures.get(row, 1.0)
            assert config.training.anneal_end == 0
            # Nobody sees the data more often than another.
            assert config.all_epochs == 30, row
        assert rows["ensemble"].flat["num_members"] == 5
        dropout = rows["dropout"].make_network()
        assert len([one for one in dropout.modules() if isinstance(one, nn.Dropout)]) == 9

    @pytest.mark.parametrize("row", METHODS)
    def test_every_parameter_has_a_prior(self, row):
        config = STUDY.row(row).with_settings(blocks=1, width=4)
        posterior = config.build_posterior()
        covered = set(posterior.weights.shapes)
        assert covered == set(trainable_parameters(config.make_network()))
        built = sum(parameter.numel() for parameter in posterior.parameters())
        (run,) = plan("cifar10-hmc", variants=[row], settings=["blocks=1", "width=4"])
        assert estimate(run).parameters == built

    def test_the_reference_has_no_seeds_and_no_validation_images(self, tmp_path):
        runs = plan("cifar10-hmc", seeds=[3, 4, 5], out=tmp_path)
        folders = [run.folder.name for run in runs if run.variant == "hmc"]
        assert folders == ["hmc-3"]
        assert len(runs) == 3 * len(METHODS) + 1
        chosen = plan("cifar10-hmc", settings=["split=validation"])
        assert [run.variant for run in chosen] == list(METHODS)
        with pytest.raises(ValueError, match="hmc: it is not known for split=validation"):
            plan("cifar10-hmc", variants=["hmc"], settings=["split=validation"])

    def test_steps(self):
        (run,) = plan("cifar10-hmc", variants=["bbh"])
        assert (estimate(run).steps_per_epoch, estimate(run).steps) == (200, 6000)
        (run,) = plan("cifar10-hmc", variants=["map"], settings=["split=validation"])
        assert estimate(run).steps_per_epoch == 180
        with pytest.raises(ValueError, match="split=training: choose one of test, validation"):
            plan("cifar10-hmc", settings=["split=training"])


def test_measures_by_hand():
    probs = torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.1, 0.9]])
    hmc = torch.tensor([[0.7, 0.3], [0.4, 0.6], [0.3, 0.7], [0.4, 0.6]])
    labels = torch.tensor([0, 1, 1, 1])
    found = measure(probs, labels, hmc)
    assert found["error"] == 25
    assert found["nll"] == pytest.approx(-math.log(0.8 * 0.4 * 0.7 * 0.9) / 4)
    assert found["hmc_agreement"] == 0.75
    assert found["hmc_total_variation"] == pytest.approx((0.1 + 0.2 + 0.0 + 0.3) / 4)
    # The one mistake is the image of most entropy, answered last.
    assert found["risk_coverage_area"] == pytest.approx(1 / 16)
    assert measure(probs, labels, None).keys() == found.keys() - {
        "hmc_agreement",
        "hmc_total_variation",
    }


def test_all_methods_from_files_to_a_report(data, hmc, tmp_path):
    out = tmp_path / "runs"
    records, output = run_tiny(data, out, "--epochs", "1")
    assert sorted(records) == sorted(f"{row}-0" for row in (*METHODS, "hmc"))
    assert "agree" in output
    for record in records.values():
        assert all(math.isfinite(value) for value in record.metrics.values())
        # Forty test images: shares come in steps of a fortieth.
        assert record.metrics["hmc_agreement"] * 40 == pytest.approx(
            round(record.metrics["hmc_agreement"] * 40)
        )
        assert record.data["pixels"].startswith("not the publisher's")
        assert record.data["HMC's pixels"] == "the publisher's"
    for row in METHODS:
        assert records[f"{row}-0"].history[-1]["step"] == 4  # 200 images, fifty at a time
    reference = records["hmc-0"].metrics
    assert reference["error"] == 25  # its label is the next class for ten of forty images
    assert reference["nll"] == pytest.approx(-0.75 * math.log(0.7) - 0.25 * math.log(0.3 / 9))
    assert (reference["hmc_agreement"], reference["hmc_total_variation"]) == (1, 0)
    assert "seconds" not in reference
    arrays = read_arrays(out / "cifar10-hmc" / "corrected" / "bbh-0")
    assert arrays["doubtful_images"].shape == (24, 32, 32, 3)
    assert len(arrays["entropy"]) == PER_FILE
    page = tmp_path / "report.html"
    assert runner.invoke(app, ["report", str(out), "--out", str(page)]).exit_code == 0
    text = page.with_suffix(".md").read_text(encoding="utf-8")
    assert "## CIFAR-10: distance from HMC, preset corrected" in text
    assert "| Agreement with HMC ↑ | Total variation from HMC ↓ |" in text.replace("\xa0", " ")
    assert "| HMC (reference) | 25.00 |" in text
    assert "| 1.0000 | 0.0000 | 1 |" in text
    assert "One seed per row" in text
    assert "HMC saw the publisher's pixels" in text
    assert "has the probabilities closest to HMC's (total variation)" in text
    assert "HMC (reference) has the" not in text


def test_a_small_network_learns_and_its_distances_are_recorded(data, hmc, tmp_path):
    settings = (*TINY, "width=8", "learning_rate=0.01", "batch_size=20")
    arguments = ("--method", "map", "--epochs", "8", "--keep-posterior")
    records, _ = run_tiny(data, tmp_path, *arguments, settings=settings)
    recorded = records["map-0"].metrics
    # Chance is 90 per cent. HMC's label is the right one for three images in four.
    assert recorded["error"] <= 10
    assert abs(recorded["hmc_agreement"] - 0.75) <= 0.1
    # MAP predicts the same again, so its stored weights must give the recorded numbers.
    stored = tmp_path / "cifar10-hmc" / "corrected" / "map-0" / "posterior.safetensors"
    config = STUDY.restored(records["map-0"].config)
    posterior = bbh.load(stored, config.make_network())
    probs = bbh.predict(posterior, load_cifar10_hmc(data).test_images, 2).mean
    expected = metrics.total_variation(probs, torch.from_numpy(hmc))
    assert recorded["hmc_total_variation"] == pytest.approx(expected, abs=1e-5)
    assert recorded["hmc_agreement"] == metrics.agreement(probs, torch.from_numpy(hmc))
