"""`bbh run …-attacks`: on kept posteriors and fresh ones, its numbers, and what the report says."""

import dataclasses
import json
import logging
import math

import pytest
import torch
from typer.testing import CliRunner

from bbh_studies.arrays import read_arrays
from bbh_studies.attack_columns import ATTACK_TITLES
from bbh_studies.cli import app
from bbh_studies.columns import METRICS
from bbh_studies.problems.images import attack as attacks
from bbh_studies.record import Record, RecordError
from bbh_studies.report import markdown_table, write_report
from bbh_studies.report.collect import Entry, collect, group
from bbh_studies.report.published import published
from bbh_studies.report.robustness import verdict
from bbh_studies.report.tables import build_table
from bbh_studies.run.plan import plan
from bbh_studies.settings.attack_settings import AttackSettings
from bbh_studies.studies import STUDIES, find_study
from studies.report_records import attack_curves, make_record, write_attacks, write_raw
from studies.tiny_cifar import tiny_words
from terminal import squeezed, unwrapped

METHODS = ("map", "ensemble", "bbb", "dropout", "mnf", "bbh")
TINY = (
    *("blocks=1", "width=4", "batch_size=10", "prediction_samples=4", "hidden=4,8"),
    *("num_members=2", "attack_draws=3", "attack_steps=2"),
)
TIMES = {"attack_seconds", "seconds", "steps_per_second", "peak_memory_bytes"}
runner = CliRunner()


def run_tiny(data, out, study, *arguments: str, settings: tuple[str, ...] = TINY):
    words = ["run", study, "--data", str(data), "--out", str(out), "--device", "cpu"]
    words += tiny_words(study, arguments, settings)
    result = runner.invoke(app, [*words, "--epochs", "1", *arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return {
        path.parent.name: Record.read(path) for path in sorted((out / study).rglob("record.json"))
    }


def forbid_training(monkeypatch):
    def refuse(*arguments, **settings):
        raise AssertionError("there is a posterior, nothing needs training")

    monkeypatch.setattr(attacks, "train_on", refuse)


def without_times(content):
    return {name: value for name, value in content.items() if name not in TIMES}


class TestRun:
    @pytest.mark.slow
    def test_all_methods_from_files_to_a_report(self, data, tmp_path):
        out = tmp_path / "runs"
        records = run_tiny(data, out, "cifar5-attacks")
        assert sorted(records) == sorted(f"{method}-0" for method in (*METHODS, "mixture"))
        sizes = [levels / 255 for levels in (0, 1, 2, 4, 8, 16, 32)]
        for name, record in records.items():
            curves = record.curves
            assert curves["epsilon"] == sizes
            assert len(curves) == 1 + len(ATTACK_TITLES) * 7
            assert all(math.isfinite(value) for value in record.metrics.values())
            assert record.metrics.keys() <= METRICS.keys()
            for attack in ATTACK_TITLES:
                assert curves[f"{attack}_linf"][0] == curves[f"{attack}_l2"][0] == 0
                # Clean images cannot be told from themselves, but by layers that draw anew.
                if record.method != "dropout":
                    assert curves[f"{attack}_auroc"][0] == pytest.approx(0.5)
                    assert curves[f"{attack}_auroc_mi"][0] == pytest.approx(0.5)
                    clean = 100 * (1 - curves[f"{attack}_accuracy"][0])
                    assert clean == pytest.approx(record.metrics["error"])
                # Twenty images: shares come in steps of a twentieth.
                right = [20 * one for one in curves[f"{attack}_accuracy"]]
                assert right == pytest.approx([round(one) for one in right])
                true = curves[f"{attack}_linf"]
                assert all(one <= size + 1e-6 for one, size in zip(true, sizes, strict=True))
                assert true == sorted(true)
                assert curves[f"{attack}_l2"] == sorted(curves[f"{attack}_l2"])
            # One step moves some pixel of every image by all that is allowed.
            assert curves["fgsm_linf"] == pytest.approx(sizes, abs=1e-6)
            stored = read_arrays(out / "cifar5-attacks" / "corrected" / name)
            assert {key: value.tolist() for key, value in stored.items()} == curves
        point, members = records["map-0"].curves, records["ensemble-0"].curves
        # The paper's attack has its full size on a single network, and less on two.
        assert point["legacy_linf"] == pytest.approx(sizes, abs=1e-6)
        assert point["legacy_auroc_mi"] == pytest.approx([0.5] * len(sizes))
        assert members["legacy_l2"][-1] < 0.99 * members["fgsm_l2"][-1]

        page = tmp_path / "report.html"
        write_report([out], page)
        text = page.with_suffix(".md").read_text(encoding="utf-8")
        assert "## CIFAR5: attacks, preset corrected" in text
        assert "- Bayes by Hypernet is " in text
        assert "bbh run cifar5-attacks --preset corrected --method bbh --seed 0" in text
        assert (
            page.read_text(encoding="utf-8").count(
                "against the size of the attack for MAP, Deep ensemble"
            )
            == 6
        )

    def test_clean_numbers_are_those_of_the_attacked_study(self, data, tmp_path):
        out, rows = tmp_path / "runs", ("--method", "map", "--keep-posterior")
        plain = run_tiny(data, out, "cifar5", *rows)["map-0"].metrics
        attacked = run_tiny(data, out, "cifar5-attacks", *rows[:2])["map-0"]
        assert attacked.metrics["error"] == pytest.approx(plain["error"])
        for attack in ATTACK_TITLES:
            clean_entropy = attacked.curves[f"{attack}_entropy"][0]
            assert clean_entropy == pytest.approx(1 - plain["entropy_auc"], abs=1e-5)

    @pytest.mark.slow
    @pytest.mark.parametrize("method", ["bbh", "ensemble"])
    def test_a_kept_posterior_is_attacked_without_training(
        self, data, tmp_path, monkeypatch, method
    ):
        rows = ("--method", method, "--seed", "3")
        fresh = run_tiny(data, tmp_path / "fresh", "cifar5-attacks", *rows)[f"{method}-3"]
        out = tmp_path / "kept"
        plain = run_tiny(data, out, "cifar5", *rows, "--keep-posterior")[f"{method}-3"]
        forbid_training(monkeypatch)
        kept = run_tiny(data, out, "cifar5-attacks", *rows)[f"{method}-3"]
        assert kept.history == plain.history
        # The very numbers of a run that trained it first.
        assert kept.curves == fresh.curves
        assert without_times(kept.metrics) == without_times(fresh.metrics)
        assert [without_times(one) for one in kept.history] == [
            without_times(one) for one in fresh.history
        ]

    def test_a_kept_posterior_serves_other_attacks(self, data, tmp_path, monkeypatch):
        run_tiny(data, tmp_path, "cifar5", "--method", "map", "--keep-posterior")
        forbid_training(monkeypatch)
        settings = (*TINY, "attack_images=7", "attack_steps=1", "prediction_samples=3")
        arguments = ("--method", "map", "--keep-posterior")
        record = run_tiny(data, tmp_path, "cifar5-attacks", *arguments, settings=settings)["map-0"]
        right = [7 * one for one in record.curves["pgd_accuracy"]]
        assert right == pytest.approx([round(one) for one in right])
        folder = tmp_path / "cifar5-attacks" / "corrected" / "map-0"
        assert sorted(path.name for path in folder.iterdir()) == [
            "arrays.npz",
            "posterior.safetensors",
            "record.json",
        ]

    @pytest.mark.parametrize("other", ["learning_rate=0.5", "split=validation"])
    def test_other_settings_are_another_posterior(self, data, tmp_path, monkeypatch, caplog, other):
        run_tiny(data, tmp_path, "cifar5", "--method", "map", "--keep-posterior")
        forbid_training(monkeypatch)
        words = ["run", "cifar5-attacks", "--data", str(data), "--out", str(tmp_path)]
        words += tiny_words("cifar5-attacks", ("--method", "map"), (*TINY, other))
        with caplog.at_level(logging.WARNING, "bbh"):
            result = runner.invoke(app, [*words, "--epochs", "1", "--method", "map"])
        assert "failed, there is a posterior, nothing needs training" in result.output
        name, _, value = other.partition("=")
        assert f"keeps a posterior with {name}=" in caplog.text
        assert f"not {value}: one is trained" in caplog.text

    def test_other_data_are_another_posterior(self, data, tmp_path, monkeypatch, caplog):
        run_tiny(data, tmp_path, "cifar5", "--method", "map", "--keep-posterior")
        path = tmp_path / "cifar5" / "corrected" / "map-0" / "record.json"
        record = Record.read(path)
        dataclasses.replace(record, data=record.data | {"CIFAR5": "0000"}).write(path.parent)
        forbid_training(monkeypatch)
        with pytest.raises(AssertionError, match="nothing needs training"):
            run_tiny(data, tmp_path, "cifar5-attacks", "--method", "map")
        assert "keeps a posterior of other data: one is trained" in caplog.text

    @pytest.mark.slow
    def test_training_attacks_and_inspection_in_one_command(self, data, tmp_path):
        arguments = ("--method", "bbb", "--inspect", "--keep-posterior")
        run_tiny(data, tmp_path, "cifar5-attacks", *arguments)
        folder = tmp_path / "cifar5-attacks" / "corrected" / "bbb-0"
        assert (folder / "inspection" / "inspection.json").exists()
        options = ["inspect", str(folder), "--draws", "5", "--device", "cpu", "--weights-only"]
        assert runner.invoke(app, options).exit_code == 0

    @pytest.mark.slow
    def test_statistics_of_batch_norm_are_each_sides_own(self, data, tmp_path, monkeypatch):
        given: list[tuple[int, int]] = []
        real = attacks.robustness

        def watched(*arguments, samples, attack_samples):
            name = "norm.running_mean"
            given.append((len(samples[name]), len(attack_samples[name])))
            assert not torch.equal(samples[name][0], attack_samples[name][0])
            return real(*arguments, samples=samples, attack_samples=attack_samples)

        monkeypatch.setattr(attacks, "robustness", watched)
        settings = (*TINY, "normalisation=batch")
        options = ("--method", "bbh", "--inspect")
        run_tiny(data, tmp_path, "cifar5-attacks", *options, settings=settings)
        assert given == [(4, 4), (4, 3), (4, 4)]  # FGSM, PGD, the paper's
        # Functions are compared with these statistics too, so the draws are those that predict.
        (looked_at,) = tmp_path.rglob("inspection.json")
        assert json.loads(looked_at.read_text(encoding="utf-8"))["draws"] == 4


def test_the_same_rows_as_the_attacked_studies():
    for study in (find_study("mnist-attacks"), find_study("cifar5-attacks")):
        base = study.attacked
        assert base is not None
        assert study.preset_names == base.preset_names
        for preset in study.preset_names:
            with_attacks = {
                row: dataclasses.replace(config, attacks=AttackSettings())
                for row, config in base.rows(preset).items()
            }
            assert study.rows(preset) == with_attacks
    assert find_study("mnist").attacked is find_study("toy").attacked is None


def test_sizes_are_those_that_explanations_name():
    mnist, cifar5 = (find_study(name).problem.attack_sizes for name in ("mnist", "cifar5"))
    assert mnist == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4])
    assert (mnist[len(mnist) // 2], cifar5[len(cifar5) // 2]) == pytest.approx((0.2, 4 / 255))
    assert "0.2 on MNIST, 4/255 on CIFAR5" in METRICS["pgd_accuracy"].explanation
    full = [f"{0.2 * math.sqrt(28 * 28):.1f}", f"{4 / 255 * math.sqrt(3 * 32 * 32):.3f}"]
    assert "{} on MNIST and {} on CIFAR5".format(*full) in METRICS["legacy_l2"].explanation


def test_headline_numbers_by_hand():
    curves = {
        "epsilon": [0.0, 0.1, 0.2],
        "fgsm_accuracy": [0.9, 0.5, 0.2],
        "fgsm_auroc": [0.5, 0.7, 0.8],
        "pgd_accuracy": [0.9, 0.4, 0.0],
    }
    assert attacks.headline_numbers(curves) == pytest.approx(
        {
            "error": 10.0,
            "fgsm_accuracy": 0.5,
            "fgsm_mean_accuracy": 0.35,
            "fgsm_auroc": 0.7,
            "pgd_accuracy": 0.4,
            "pgd_mean_accuracy": 0.2,
        }
    )


@pytest.mark.parametrize("setting", ["attack_images=0", "attack_draws=0", "attack_steps=-1"])
def test_counts_are_checked_before_anything_runs(setting):
    with pytest.raises(ValueError, match="give a positive"):
        plan("mnist-attacks", settings=[setting])


def test_help_and_dry_run(data, tmp_path):
    text = unwrapped(runner.invoke(app, ["run", "--help"]).output)
    assert all(study in text for study in STUDIES)
    dry = ["run", "mnist-attacks", "--method", "bbh", "--dry-run", "--out", str(tmp_path)]
    result = runner.invoke(app, dry)
    assert result.exit_code == 0, result.output
    assert "431,080" in unwrapped(result.output)
    assert "attack_steps=20" in unwrapped(result.output)
    run_tiny(data, tmp_path, "cifar5", "--method", "map", "--keep-posterior")
    words = tiny_words("cifar5-attacks", ("--method", "map"), TINY)
    dry = ["run", "cifar5-attacks", "--method", "map", "--epochs", "1", "--dry-run", *words]
    result = runner.invoke(app, [*dry, "--out", str(tmp_path)])
    kept = f"with the posterior of {tmp_path / 'cifar5/corrected/map-0'}"
    assert squeezed(kept) in squeezed(result.output)


class TestVerdict:
    def sentence(
        self,
        study: str = "mnist-attacks",
        preset: str = "corrected",
        seeds: int = 2,
        **accuracies: dict[str, tuple[float, ...]],
    ):
        """From accuracies of seeds by attack and row."""
        rows = {variant for by_row in accuracies.values() for variant in by_row}
        records = [
            make_record(
                variant,
                seed,
                study=study,
                preset=preset,
                metrics={
                    f"{attack}_mean_accuracy": by_row[variant][seed]
                    for attack, by_row in accuracies.items()
                },
            )
            for variant in sorted(rows)
            for seed in range(seeds)
        ]
        (one,) = group([Entry(record) for record in records])
        return verdict(build_table(one, published(study), main=True))

    HIGH, NEAR, LOW = (0.50, 0.52), (0.51, 0.53), (0.20, 0.22)

    def test_the_best(self):
        rows = {"map": self.LOW, "bbh": self.HIGH}
        text = self.sentence(fgsm=rows, pgd=rows, legacy={"map": self.HIGH, "bbh": self.LOW})
        assert text == (
            "Bayes by Hypernet is the most robust method under the corrected attacks. "
            "Accuracy, mean over all sizes: "
            "FGSM 51.0 ± 1.4 %, before MAP (21.0 ± 1.4 %); "
            "PGD 51.0 ± 1.4 %, before MAP (21.0 ± 1.4 %); "
            "Paper's FGSM 21.0 ± 1.4 %, behind MAP (51.0 ± 1.4 %)."
        ).replace(" %", "\N{NO-BREAK SPACE}%")

    def test_not_the_best_under_one_of_both(self):
        ahead, behind = ({"map": self.LOW, "bbh": self.HIGH}, {"map": self.HIGH, "bbh": self.LOW})
        for fgsm, pgd in ((ahead, behind), (behind, ahead)):
            text = self.sentence(fgsm=fgsm, pgd=pgd)
            assert text.startswith("Bayes by Hypernet is not the most robust method under the ")
            assert "behind MAP (51.0" in text
            assert "the paper says" not in text

    def test_the_papers_claim_is_compared_with_its_own_posteriors_and_attack(self):
        ahead, behind = ({"map": self.LOW, "bbh": self.HIGH}, {"map": self.HIGH, "bbh": self.LOW})
        text = self.sentence(preset="legacy", fgsm=behind, pgd=behind, legacy=ahead)
        assert text.startswith(
            "Bayes by Hypernet is the most robust method under the paper's attack; the paper says "
            "that it is the most robust. Accuracy"
        )
        text = self.sentence("cifar5-attacks", "paper", fgsm=ahead, pgd=ahead, legacy=behind)
        assert "is not the most robust method under the paper's attack; the paper says" in text
        assert "most robust, but for dropout at small sizes. Accuracy" in text
        assert self.sentence(preset="paper", fgsm=ahead, pgd=ahead) == ""

    def test_one_seed_is_no_test(self):
        rows = {"map": self.LOW, "bbh": self.HIGH}
        text = self.sentence(seeds=1, fgsm=rows, pgd=rows)
        assert "under the corrected attacks (one seed each, not tested). Accuracy" in text

    def test_not_told_apart(self):
        rows = {"map": self.NEAR, "bbb": self.LOW, "bbh": self.HIGH}
        text = self.sentence(fgsm=rows, pgd={"map": self.LOW, "bbb": self.LOW, "bbh": self.HIGH})
        assert text.startswith("Bayes by Hypernet is not told apart from the most robust method")
        # Ahead or behind by less than chance would do is the same.
        assert "FGSM 51.0 ± 1.4\N{NO-BREAK SPACE}%, not told apart from MAP (52.0" in text

    def test_nothing_is_said_of_what_was_not_compared(self):
        rows = {"map": self.LOW, "bbh": self.HIGH}
        assert self.sentence(fgsm=rows) == ""
        assert self.sentence(fgsm={"bbh": self.HIGH}, pgd={"bbh": self.HIGH}) == ""
        assert self.sentence(fgsm={"map": self.HIGH}, pgd={"map": self.HIGH}) == ""


class TestReport:
    def test_section(self, tmp_path):
        write_attacks(tmp_path)
        page = write_report([tmp_path], tmp_path / "report.html")
        text = page.with_suffix(".md").read_text(encoding="utf-8")
        section = text[text.index("## MNIST: attacks") : text.index("## CIFAR5: attacks")]
        assert "Bayes by Hypernet is the most robust method under the corrected" in section
        assert "1,000 images are attacked" in section
        assert "up to 1.6 points" in section
        # 0.99 · exp(−0.65 k) for k = 1 to 8 has the mean 0.134, and 0.074 at the middle.
        assert "| MAP | **1.00** | 13.4 | 7.4 | " in section
        html = page.read_text(encoding="utf-8")
        for name in ATTACK_TITLES.values():
            escaped = name.replace("'", "&#39;")
            assert f'alt="{escaped}: accuracy (solid) and entropy / maximum (dashed)' in html

    def test_old_records_and_new_ones_are_the_same_row(self, tmp_path):
        record = make_record("bbh", 0)
        new = {"attack_images", "attack_draws", "attack_steps"}
        old = {name: value for name, value in record.config.items() if name not in new}
        content = dataclasses.asdict(dataclasses.replace(record, seed=1, config=old))
        del content["curves"]
        write_raw(tmp_path / "old" / "record.json", content)
        record.write(tmp_path / "new")
        (one,) = collect([tmp_path])
        assert [len(runs.entries) for runs in one.rows] == [2]
        assert [record.curves for record in one.records] == [{}, {}]

    @pytest.mark.parametrize(
        "curves",
        [
            [1.0],
            {"epsilon": 0.1},
            {"fgsm_accuracy": [0.1]},
            {"epsilon": [0.0, 0.1], "fgsm_accuracy": [0.1]},
            {"epsilon": ["much"]},
        ],
    )
    def test_broken_curves_are_named(self, tmp_path, curves):
        content = dataclasses.asdict(make_record()) | {"curves": curves}
        write_raw(tmp_path / "record.json", content)
        with pytest.raises(RecordError, match="curves"):
            collect([tmp_path])

    def test_table_for_the_documentation(self):
        curves = attack_curves(0.3)
        metrics = attacks.headline_numbers(curves)
        record = make_record("bbh", study="mnist-attacks", metrics=metrics, curves=curves)
        head = markdown_table([record], "mnist-attacks", "corrected").splitlines()[0]
        columns = [one.strip() for one in head.split("|")[2:-2]]
        assert columns == [
            "Error \\[%\\] ↓",
            "FGSM, mean accuracy \\[%\\] ↑",
            "FGSM, accuracy \\[%\\] ↑",
            "FGSM, AUROC ↑",
            "PGD, mean accuracy \\[%\\] ↑",
            "PGD, accuracy \\[%\\] ↑",
            "PGD, AUROC ↑",
            "Paper's FGSM, mean accuracy \\[%\\] ↑",
            "Paper's FGSM, true L2 size",
        ]
