"""`bbh run cifar5`: presets, and all six methods from files to a report in seconds."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import bbh
from bbh.methods import MultiplicativeFlow, Product
from bbh.network import select_bayesian
from bbh.samples import size
from bbh_studies.arrays import read_arrays
from bbh_studies.cli import app
from bbh_studies.problems.cifar5.resnet import PaperResNet, ResNet, StandardisedConv2d
from bbh_studies.problems.cifar5.study import Cifar5
from bbh_studies.problems.images.augmentation import Augmentation
from bbh_studies.problems.images.train_and_measure import ShuffledBatches
from bbh_studies.record import Record
from bbh_studies.report.published import published
from bbh_studies.run.estimates import estimate
from bbh_studies.run.plan import plan
from bbh_studies.run.run import Run
from bbh_studies.studies import find_study
from studies.tiny_cifar import PER_FILE, tiny_words

METHODS = ("map", "ensemble", "bbb", "dropout", "mnf", "bbh")
TINY = ("blocks=1", "width=4", "batch_size=10", "prediction_samples=4", "hidden=4,8")
CIFAR5 = find_study("cifar5")
runner = CliRunner()


def run_tiny(data, out, *arguments: str, settings: tuple[str, ...] = TINY):
    words = ["run", "cifar5", "--data", str(data), "--out", str(out), "--device", "cpu"]
    words += tiny_words("cifar5", arguments, settings)
    result = runner.invoke(app, [*words, *arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return {path.parent.name: Record.read(path) for path in out.rglob("record.json")}


@pytest.mark.parametrize(
    "preset", [pytest.param("corrected", marks=pytest.mark.slow), "paper", "legacy"]
)
def test_all_methods_from_files_to_a_report(data, tmp_path, preset):
    out = tmp_path / "runs"
    records = run_tiny(data, out, "--preset", preset, "--epochs", "1")
    rows = (*METHODS, "mixture") if preset == "corrected" else METHODS
    assert sorted(records) == sorted(f"{row}-0" for row in rows)
    for record in records.values():
        assert all(math.isfinite(value) for value in record.metrics.values())
        # Twenty test images of five classes: errors come in steps of five per cent.
        assert record.metrics["error"] % 5 == 0
        assert record.history[-1]["step"] == 10  # a hundred images, ten at a time
        assert record.data["pixels"] == "not the publisher's: a recoded copy"
        assert record.data["outliers"] == "CIFAR-10's other classes"
    arrays = read_arrays(out / "cifar5" / preset / "bbh-0")
    assert arrays["doubtful_images"].shape == (20, 32, 32, 3)
    assert arrays["doubtful_images"].dtype == "uint8"
    assert len(arrays["outlier_entropy"]) == PER_FILE // 2
    assert not [name for name in arrays if "rotation" in name]
    page = tmp_path / "report.html"
    assert runner.invoke(app, ["report", str(out), "--out", str(page)]).exit_code == 0
    text = page.with_suffix(".md").read_text(encoding="utf-8")
    assert "Pixels are not the publisher's: a recoded copy" in text
    assert "paper 13.62" in text
    assert any(
        f"as {name}" in page.read_text(encoding="utf-8")
        for name in ("airplane", "cat", "deer", "bird")
    )


@pytest.mark.slow
def test_a_small_network_learns_to_tell_stripes_apart(data, tmp_path):
    settings = (*TINY, "width=8", "learning_rate=0.01", "temperature=0.01")
    arguments = ("--method", "map", "--epochs", "12")
    records = run_tiny(data, tmp_path / "runs", *arguments, settings=settings)
    # Chance is 80 per cent.
    assert records["map-0"].metrics["error"] <= 20


def test_choosing_looks_at_no_test_image(data, tmp_path, monkeypatch):
    seen: list[torch.Tensor] = []
    real = ShuffledBatches.__init__

    def watched(self, images, labels, *arguments, **settings):
        seen.append(images)
        real(self, images, labels, *arguments, **settings)

    monkeypatch.setattr(ShuffledBatches, "__init__", watched)
    out = tmp_path / "runs"
    settings = (*TINY, "split=validation", "augmentation=none")
    records = run_tiny(data, out, "--method", "map", "--epochs", "1", settings=settings)
    record = records["map-0"]
    assert record.history[-1]["step"] == 9  # ninety images are left to train on
    assert {len(images) for images in seen} == {90}
    # The second pixel tells the file: training and evaluation saw the first five only.
    arrays = read_arrays(out / "cifar5" / "corrected" / "map-0")
    for images in (arrays["doubtful_images"], arrays["fooled_images"]):
        assert len(images) == 10
        assert images[:, 0, 1, 0].max() < 5
    assert record.data["split"] == "validation"
    assert record.data["outliers"] == "CIFAR-10's other classes of training"


@pytest.mark.parametrize(
    ("normalisation", "row"), [("batch", "bbh"), ("filter_response", "bbh"), ("batch", "mixture")]
)
def test_other_norms_and_settings_of_the_experiments(data, tmp_path, normalisation, row):
    settings = (
        *TINY,
        f"normalisation={normalisation}",
        "warm_start_epochs=2",
        "prior=fan_in",
        "precision=bf16-mixed",
        "bayesian=classify,blocks.[12].*.weight",
        "temperature=0.1",
        "average_epochs=1",
        "likelihood_samples=2",
        "neighbours=2",
        *(["num_members=2"] if row == "mixture" else []),
    )
    out = tmp_path / "runs"
    records = run_tiny(data, out, "--method", row, "--epochs", "1", settings=settings)
    record = records[f"{row}-0"]
    assert record.config["bayesian"] == ["classify", "blocks.[12].*.weight"]
    assert math.isfinite(record.metrics["nll"])
    folder = out / "cifar5" / "corrected" / f"{row}-0"
    assert sorted(path.name for path in folder.iterdir()) == ["arrays.npz", "record.json"]
    # A record's settings, said again, are the same settings.
    (again,) = plan("cifar5", variants=[row], settings=settings, epochs=1)
    resumed = runner.invoke(
        app,
        [
            *("run", "cifar5", "--method", row, "--epochs", "1", "--resume"),
            *("--data", str(data), "--out", str(out), "--device", "cpu"),
            *(word for one in settings for word in ("--set", one)),
        ],
    )
    assert again.config.prior.bayesian == ("classify", "blocks.[12].*.weight")
    assert "was there" in resumed.output


@pytest.mark.slow
def test_statistics_of_batch_norm_are_each_draws_own(data, tmp_path, monkeypatch):
    """Without them a run would predict with an average over the draws of all steps."""
    asked: list[int] = []
    real = bbh.refresh_batch_norm

    def watched(posterior, loader, number):
        asked.append(number)
        samples = real(posterior, loader, number)
        assert samples["norm.running_mean"].std(0).max() > 0
        return samples

    monkeypatch.setattr(bbh, "refresh_batch_norm", watched)
    train_and_measure = CIFAR5.runner(data)
    for normalisation in ("group", "batch", "batch_statistics"):
        (run,) = plan(
            "cifar5",
            variants=["bbh"],
            epochs=1,
            settings=(*TINY, f"normalisation={normalisation}"),
            out=tmp_path / normalisation,
        )
        train_and_measure(run, device="cpu", progress=False)
    assert asked == [4]


def test_the_papers_presets_are_the_papers():
    for method, config in CIFAR5.rows("paper").items():
        network = config.make_network()
        assert isinstance(network, PaperResNet)
        assert (config.training.epochs, config.training.batch_size) == (200, 100)
        assert config.flat["augmentation"] == "distorted"
        names = select_bayesian(network, None)
        parameters = dict(network.named_parameters())
        assert size({name: parameters[name].shape for name in names}) == 462_693
        assert config.training.learning_rate == (1e-4 if method == "bbh" else 1e-3)
    for method in ("mnf", "bbh"):
        training = CIFAR5.row(method, "paper").training
        assert (training.anneal_start, training.anneal_end) == (20, 35)
    assert CIFAR5.row("mnf", "paper").flat["max_scale"] == 0.3
    assert CIFAR5.row("ensemble", "paper").flat["num_members"] == 5
    initial_scale = CIFAR5.row("bbb", "paper").flat["initial_scale"]
    assert 2 * math.log(initial_scale) == pytest.approx(-30)
    (run,) = plan("cifar5", variants=["bbh"], preset="paper")
    assert estimate(run).steps == 50_000
    # The specification: 64 generators of 246.9 million parameters.
    assert estimate(run).parameters == pytest.approx(246.9e6, rel=1e-3)
    assert published("cifar5").get("dropout", "error") is not None


def test_legacy_networks_are_each_methods_own():
    def network(method: str) -> nn.Module:
        return CIFAR5.row(method, "legacy").make_network()

    norms = {method: network(method).norm for method in METHODS}
    assert [method for method in METHODS if isinstance(norms[method], nn.Identity)] == [
        "bbb",
        "mnf",
        "bbh",
    ]
    batch_norm = network("bbh").blocks[0].norm1
    assert isinstance(batch_norm, nn.BatchNorm2d)
    assert not batch_norm.track_running_stats
    dropout = [one for one in network("dropout").modules() if isinstance(one, nn.Dropout)]
    assert len(dropout) == 31
    assert {one.p for one in dropout} == {0.5}


def test_legacy_flows_leave_norms_alone_and_pay_for_the_last_layer():
    posterior = CIFAR5.row("mnf", "legacy").with_settings(blocks=1, width=4).build_posterior()
    assert isinstance(posterior.weights, Product)
    flows, points = posterior.weights.parts
    assert isinstance(flows, MultiplicativeFlow)
    assert list(flows.penalised) == ["classify.weight", "classify.bias"]
    assert all("norm" in name for name in points.shapes)
    assert not any("norm" in name for name in flows.shapes)


def test_corrected_is_hes_network_for_all():
    configs = CIFAR5.rows("corrected")
    networks = [config.make_network() for config in configs.values()]
    assert all(isinstance(network, ResNet) for network in networks)
    assert len({sum(p.numel() for p in network.parameters()) for network in networks}) == 1
    assert {config.flat["normalisation"] for config in configs.values()} == {"group"}
    assert {type(network.conv) for network in networks} == {StandardisedConv2d}
    # Nobody sees the data more often than another, but for the mixture: an ensemble that sees them
    # as often is on record beside it.
    epochs = {row: config.all_epochs for row, config in configs.items()}
    longer = epochs.pop("mixture")
    assert len(set(epochs.values())) == 1
    path = Path(__file__).parents[2] / "results/sixty-epochs"
    records = [Record.read(one) for one in path.rglob("record.json")]
    assert [(one.study, one.variant) for one in records] == [("cifar5", "ensemble")] * 3
    assert {one.config["epochs"] for one in records} == {longer}


@pytest.mark.slow
def test_temperatures_differ_in_nothing_else(data, tmp_path):
    rows = find_study("cifar5-temperatures").rows()
    start = CIFAR5.row("bbh", "corrected")
    for name, config in rows.items():
        temperature = float(name.removeprefix("temperature-"))
        assert config == start.with_settings(temperature=temperature)
    words = ["run", "cifar5-temperatures", "--method", "temperature-0.01", "--epochs", "1"]
    words += ["--data", str(data), "--out", str(tmp_path), "--device", "cpu"]
    result = runner.invoke(app, [*words, *(w for one in TINY for w in ("--set", one))])
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.rglob("record.json")
    assert path.parent.name == "temperature-0.01-0"
    assert Record.read(path).config["temperature"] == 0.01


def test_augmentations_by_name():
    assert Cifar5().make_augmentation(28) is None
    assert Cifar5(augmentation="crops").make_augmentation(28) == Augmentation(28, 4)
    paper = Cifar5(augmentation="distorted", network="paper").make_augmentation(32)
    assert paper == Augmentation(24, 2, 63 / 255, (0.2, 1.8))


def test_fewer_steps_where_validation_images_are_set_aside():
    steps = [
        estimate(*plan("cifar5", variants=["map"], settings=[f"split={split}"])).steps_per_epoch
        for split in ("test", "validation")
    ]
    assert steps == [250, 225]
    (run,) = plan("cifar5", variants=["bbh"], settings=["warm_start_epochs=40"])
    assert estimate(run).steps == 250 * (40 + run.config.training.epochs)


@pytest.mark.parametrize(
    "setting",
    [
        "normalisation=layer",
        "network=vgg",
        "augmentation=some",
        "prior=flat",
        "precision=16-mixed",
        "dropout_placement=everywhere",
    ],
)
def test_unknown_words_are_found_before_anything_runs(setting):
    with pytest.raises(ValueError, match="choose one of"):
        plan("cifar5", settings=[setting])


def test_estimates_are_those_of_built_posteriors(tmp_path):
    for preset in ("corrected", "paper", "legacy"):
        for run in plan("cifar5", preset=preset, settings=[*TINY, "bayesian=blocks.*,classify"]):
            posterior = run.config.build_posterior()
            built = sum(parameter.numel() for parameter in posterior.parameters())
            assert estimate(run).parameters == built, (preset, run.variant)


def test_runs_know_what_they_leave_behind(tmp_path):
    run = Run(CIFAR5, "bbh", "corrected", 0, CIFAR5.row("bbh"), tmp_path)
    for path in (run.checkpoint, run.warm_start):
        path.write_bytes(b"")
    run.forget()
    assert list(tmp_path.iterdir()) == []
