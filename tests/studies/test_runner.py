"""Plans, their sizes, progress and tables."""

import dataclasses
import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

import bbh
from bbh.training.display import Display
from bbh.training.history import EpochRecord
from bbh_studies.record import Record
from bbh_studies.run.estimates import estimate
from bbh_studies.run.plan import plan
from bbh_studies.run.run import Run
from bbh_studies.settings.words import ConfigError
from bbh_studies.studies import STUDIES, find_study
from bbh_studies.terminal.dry_run import show_plan
from bbh_studies.terminal.live import StudyProgress
from bbh_studies.terminal.tables import results_table
from bbh_studies.terminal.time_left import TimeLeft

METHODS = ("map", "ensemble", "bbb", "dropout", "mnf", "bbh")


def make_run(variant: str = "map", seed: int = 0, epochs: int = 2) -> Run:
    config = find_study("digits").row(variant)
    # Two steps per epoch.
    config = config.with_settings(epochs=epochs, batch_size=500)
    return Run(find_study("digits"), variant, "corrected", seed, config, Path("x"))


def num_built(run: Run) -> int:
    """Parameters of the posterior itself, to compare an estimate with."""
    return sum(parameter.numel() for parameter in run.config.build_posterior().parameters())


def make_console(width: int = 80, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class TestPlan:
    def test_every_row_and_the_first_preset_by_default(self):
        runs = plan("mnist", seeds=[3, 4, 3])
        assert [run.variant for run in runs[::2]] == [*METHODS, "mixture"]
        assert {run.preset for run in runs} == {"corrected"}
        assert [run.seed for run in runs[:2]] == [3, 4]
        assert runs[0].folder == Path("runs", "mnist", "corrected", "map-3")
        assert plan("mnist-noise")[0].preset == "paper"

    def test_a_reference_is_looked_up_once(self):
        runs = plan("toy", variants=["map", "nuts"], seeds=[2, 0, 1])
        assert [(run.variant, run.seed) for run in runs] == [
            *(("map", seed) for seed in (2, 0, 1)),
            ("nuts", 2),
        ]

    def test_epochs_keep_annealing_in_proportion(self):
        (run,) = plan("mnist", variants=["bbh"], preset="paper", epochs=10)
        training = run.config.training
        assert (training.epochs, training.anneal_start, training.anneal_end) == (10, 0.5, 2.0)

    def test_settings_come_last(self):
        (run,) = plan("digits", variants=["map"], epochs=4, settings=["anneal_end=3"])
        assert (run.config.training.epochs, run.config.training.anneal_end) == (4, 3.0)

    def test_annealing_ends_before_training(self):
        with pytest.raises(ConfigError, match="annealing would end at epoch 20"):
            plan("digits", variants=["map"], settings=["epochs=2"])

    @pytest.mark.parametrize(
        "settings", ["generator=big", "optimizer=sgd", "divergence=none", "num_samples=1"]
    )
    def test_mistakes_are_found_before_anything_runs(self, settings):
        with pytest.raises(ValueError, match=r"choose one of|at least"):
            plan("digits", settings=[settings])

    @pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
    def test_all_presets_can_be_planned(self, study):
        for preset in study.preset_names:
            planned = plan(study.name, preset=preset, seeds=[0])
            assert len(planned) == len(study.rows(preset)) * max(1, len(study.parts))
            assert study.rows(preset).keys() <= study.row_titles.keys()

    @pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
    def test_settings_survive_a_record(self, study):
        for preset in study.preset_names:
            for config in study.rows(preset).values():
                stored = json.loads(json.dumps(config.flat))
                assert study.restored(stored) == config
                # Records of earlier versions hold settings of other methods as well.
                assert study.restored(stored | {"of_another_method": 3}) == config

    def test_names_of_settings_mean_one_thing_each(self):
        for study in STUDIES.values():
            for config in study.rows().values():
                assert len(config.names) == len(set(config.names)) == len(config.flat) - 1


class TestEstimates:
    @pytest.mark.parametrize("study", ["toy", "digits"])
    def test_counts_are_those_of_built_posteriors(self, study):
        for run in plan(study):
            if not run.config.method.is_trained:
                continue
            assert estimate(run).parameters == num_built(run), run.variant

    def test_critics_count(self):
        (run,) = plan("digits", variants=["bbh"], settings=["divergence=adversarial"])
        (without,) = plan("digits", variants=["bbh"])
        assert estimate(run).parameters == num_built(run) > estimate(without).parameters

    def test_moments_in_half_precision(self):
        """They are in the optimiser that a run gets; two of four numbers then take half a place."""
        usual = find_study("mnist").row("bbh", "paper")
        half = usual.with_settings(half_moments=True)
        ratio = half.training.memory_bytes(1000) / usual.training.memory_bytes(1000)
        assert ratio == pytest.approx(3 / 4)
        # As wide as the paper's, on a small network.
        small = find_study("digits").row("bbh").with_settings(hidden=(8, 512), half_moments=True)
        posterior = small.build_posterior()
        optimizer = small.training.make_optimizer(posterior)(posterior.parameters())
        batch = (torch.randn(6, 1, 8, 8), torch.arange(6))
        bbh.free_energy(posterior, batch, num_data=24).total.backward()
        optimizer.step()
        matrices = [p for p in posterior.parameters() if p.numel() >= 2**20]
        assert {optimizer.state[p]["exp_avg"].dtype for p in matrices} == {torch.bfloat16}
        with pytest.raises(ConfigError, match="rmsprop has no moments"):
            small.with_settings(optimizer="rmsprop").check()

    def test_numbers_of_the_paper(self):
        sizes = {run.variant: estimate(run) for run in plan("mnist-generators")}
        assert {size.weights for size in sizes.values()} == {431_080}
        assert sizes["layerwise"].parameters == 222_331_368
        assert sizes["single"].parameters == pytest.approx(1.86e6, rel=0.005)
        assert sizes["sliced"].parameters == pytest.approx(2.46e6, rel=0.005)
        assert sizes["layerwise"].memory_bytes == 16 * 222_331_368
        assert (sizes["single"].steps_per_epoch, sizes["single"].steps) == (550, 55_000)

    def test_a_dry_run_shows_what_is_not_the_presets(self):
        console = make_console(width=90)
        show_plan(plan("mnist", variants=["bbh"], preset="legacy", epochs=50), console)
        text = shown(console)
        assert "epochs 100 → 50, anneal_start 5 → 2.5, anneal_end 20 → 10" in text
        assert "2.48 GiB" in text  # RMSProp remembers one number per weight, Adam two
        assert "optimizer=rmsprop_tf" in text


class TestNarrowTerminals:
    @pytest.mark.parametrize("width", [80, 40, 24])
    def test_tables_break_names_and_cut_none(self, width):
        console = make_console(width=width)
        console.print(results_table([make_record("mixture", 0, 0.5)], console))
        text = shown(console)
        cells = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
        assert " ".join(cells) == "Bayes by Hypernet, mixture"
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width

    def test_progress_breaks_names_and_cuts_none(self):
        console = make_console(width=38, terminal=True)
        with StudyProgress(plan("digits", variants=["mixture"]), console) as progress:
            progress.begin()
        assert "mixture" in shown(console)
        assert "…" not in shown(console)


class TestTimeLeft:
    def test_runs_cost_what_finished_ones_of_their_kind_did(self):
        left = TimeLeft([("map", 100), ("bbh", 100), ("map", 100), ("bbh", 100), ("mnf", 10)])
        assert left.seconds(0, None) is None
        assert left.seconds(50, 0.1) == pytest.approx(5 + 10 + 10 + 10 + 1)
        left.finished(10.0, 100)  # map: 0.1 s per step
        left.finished(90.0, 100)  # bbh: 0.9 s per step
        assert left.seconds(0, None) == pytest.approx(10 + 90 + 5)  # mnf: their mean, 0.5
        assert left.seconds(50, 0.2) == pytest.approx(10 + 90 + 5)  # its own rate for this run
        for _ in range(3):
            left.finished()
        assert left.seconds(0, None) == 0.0

    def test_runs_that_were_there_say_nothing(self):
        left = TimeLeft([("map", 100), ("map", 100)])
        left.finished()
        assert left.seconds(0, None) is None


class TestStudyProgress:
    def play(self, console: Console) -> None:
        """Two runs of two epochs of two steps, 40 seconds a step."""
        now = [0.0]
        runs = [make_run(), make_run("bbb")]
        terms = {"total": 1.0, "nll": 0.5, "complexity": 1234.0}
        fields = {field.name: 0 for field in dataclasses.fields(EpochRecord)}
        with StudyProgress(runs, console, clock=lambda: now[0]) as progress:
            assert isinstance(progress, Display)
            for _ in runs:
                progress.begin()
                for step in range(4):
                    now[0] += 40
                    progress.step(step // 2, step % 2, terms)
                    if step % 2:
                        record = {**fields, "epoch": step // 2 + 1, "validation": {}}
                        progress.epoch(EpochRecord(**record))
                progress.end("err 1.00 %", trained=True)

    def test_plain_lines_without_a_terminal(self):
        console = make_console()
        self.play(console)
        lines = shown(console).splitlines()
        assert "\x1b" not in shown(console)
        assert lines[0] == (
            "digits 1/2 MAP, seed 0: epoch 1/2, loss 1 · nll 0.5 · complexity 1,234; "
            "4 min 00 s left"
        )
        # Each run took 160 s; one step of the first was already behind when it was first heard of.
        assert lines[2] == "digits 1/2 MAP, seed 0: err 1.00 %; 3 min 33 s left"
        assert lines[-1] == "digits 2/2 Bayes by Backprop, seed 0: err 1.00 %"

    @pytest.mark.parametrize("width", [80, 120])
    def test_two_lines_on_a_terminal(self, width):
        console = make_console(width, terminal=True)
        self.play(console)
        text = shown(console)
        assert "digits, run 2/2" in text
        assert "Bayes by Backprop, seed 0" in text
        assert "s left" in text


def make_record(variant: str, seed: int, error: float, study: str = "digits") -> Record:
    names = ("nll", "entropy_auc", "outlier_entropy_auc", "ood_auroc", "ece", "seconds", "brier")
    metrics = {"error": error, **dict.fromkeys((*names, "ood_aupr", "ood_auroc_mi"), 0.5)}
    return Record(study, variant, variant, "corrected", seed, {}, metrics, [], {})


class TestTable:
    def test_means_over_seeds(self):
        records = [make_record("bbh", seed, error) for seed, error in enumerate((1.0, 2.0, 3.0))]
        console = make_console()
        console.print(results_table(records, console))
        assert "2.00±1.00" in shown(console)
        assert "of 3 seeds" in shown(console)
        assert shown(console).count("Bayes by Hypernet") == 1

    @pytest.mark.parametrize("seeds", [1, 3])
    def test_columns_fit(self, seeds):
        records = [make_record(m, s, 1.0 + s) for m in METHODS for s in range(seeds)]
        counts = []
        for width in (80, 120, 200):
            console = make_console(width)
            console.print(results_table(records, console))
            lines = shown(console).splitlines()
            assert max(map(len, lines)) <= width
            assert "…" not in shown(console)
            counts.append(lines[2].count("┃") - 1)
        assert counts == sorted(counts)
        assert counts[0] < counts[-1]
        assert counts[0] >= (8 if seeds == 1 else 5)

    def test_seeds_whose_numbers_are_not_finite_are_shown(self):
        console = make_console()
        console.print(
            results_table([make_record("bbh", s, s * float("inf")) for s in (1, 2)], console)
        )
        assert "inf" in shown(console)

    def test_rows_of_ablations_are_called_as_in_reports(self):
        record = make_record("layerwise", 0, 1.0, study="mnist-generators")
        record = dataclasses.replace(record, method="bbh")
        console = make_console()
        console.print(results_table([record], console))
        assert "variant" in shown(console)
        assert "Layer-wise" in shown(console)

    def test_the_toy_study_has_columns_of_its_own(self):
        metrics = {"rmse": 12.3, "nll": 4.0, "distance_to_nuts": 3.2, "coverage_inside": 0.9}
        record = Record("toy", "bbh", "bbh", "corrected", 0, {}, metrics, [], {})
        console = make_console()
        console.print(results_table([record], console))
        assert all(word in shown(console) for word in ("RMSE", "to NUTS", "cover in", "12.3"))
        assert "AUROC" not in shown(console)
