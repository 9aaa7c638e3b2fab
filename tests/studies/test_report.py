"""The report's numbers by hand, its marks at their edges, and the tables of README and docs."""

import dataclasses
import importlib.util
import math
import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from bbh.plots.canvas import figure_style, legend_below, new_axes
from bbh_studies.columns import METRICS
from bbh_studies.record import RecordError
from bbh_studies.report import markdown_table, training_table
from bbh_studies.report.collect import Entry, collect, group
from bbh_studies.report.published import published
from bbh_studies.report.reproduce import command
from bbh_studies.report.summary import behind, caveats, findings
from bbh_studies.report.tables import Mark, build_table, compare
from bbh_studies.statistic import Statistic
from bbh_studies.studies import row_titles
from studies.report_records import ERRORS, make_record

ROOT = Path(__file__).parent.parent.parent
ERROR, AREA = METRICS["error"], METRICS["entropy_auc"]


def table_of(*records, main=True):
    (one,) = group([Entry(record) for record in records])
    return build_table(one, published(one.study), main=main)


def caveats_of(*records):
    (one,) = group([Entry(record) for record in records])
    return caveats(one, table_of(*records))


def cells(table, name):
    return {runs.variant: cell for runs, cell in table.column(name).items()}


def test_mean_and_standard_deviation_by_hand():
    """Of 0.50, 0.56 and 0.62: mean 0.56, deviations ±0.06, variance 2·0.0036/2."""
    statistic = Statistic.of(ERRORS["bbh"])
    assert statistic.mean == pytest.approx(0.56)
    assert statistic.std == pytest.approx(0.06)
    records = [make_record(seed=s, metrics={"error": e}) for s, e in enumerate(ERRORS["bbh"])]
    cell = cells(table_of(*records), "error")["bbh"]
    assert (cell.text, cell.paper, cell.mark) == ("0.56 ± 0.06", "0.56", Mark.NOISE)


def test_one_seed_has_no_spread_and_no_verdict():
    cell = cells(table_of(make_record(metrics={"error": 9.0})), "error")["bbh"]
    assert (cell.text, cell.mark) == ("9.00", Mark.ONE_SEED)


@pytest.mark.parametrize(
    ("mean", "mark"),
    [
        # One run of three lies within 4.303 · √(1 + 1/3) = 4.968 standard deviations of 0.01; with
        # 0.005 of rounding around 0.80 that is 0.7453 to 0.8547.
        (0.7452, Mark.BETTER),
        (0.7454, Mark.NOISE),
        (0.80, Mark.NOISE),
        (0.8546, Mark.NOISE),
        (0.8548, Mark.WORSE),
    ],
)
def test_marks_at_the_edges(mean, mark):
    assert compare(Statistic(mean, 0.01, 3), Decimal("0.80"), ERROR) is mark
    # Where high is good, the same numbers mean the opposite.
    opposite = {Mark.BETTER: Mark.WORSE, Mark.WORSE: Mark.BETTER}.get(mark, mark)
    assert compare(Statistic(mean, 0.01, 3), Decimal("0.80"), AREA) is opposite


def test_printed_digits_decide_the_rounding():
    """1.1 may have been 1.05 to 1.15, but 1.10 only 1.095 to 1.105."""
    ours = Statistic(1.14, 0.0, 3)
    assert compare(ours, Decimal("1.1"), ERROR) is Mark.NOISE
    assert compare(ours, Decimal("1.10"), ERROR) is Mark.WORSE
    assert published("mnist").get("map", "error") == Decimal("0.80")
    assert str(published("mnist").get("map", "error")) == "0.80"


def test_times_are_shown_and_not_judged():
    records = [make_record(seed=s, metrics={"seconds": 10.0 + s}) for s in range(3)]
    cell = cells(table_of(*records, main=False), "seconds")["bbh"]
    assert (cell.paper, cell.mark, cell.best) == ("11,504", None, False)
    assert not cells(table_of(*records), "seconds")


def test_published_numbers_belong_to_rows_and_metrics_that_exist():
    for study in ("mnist", "mnist-generators", "mnist-noise", "mnist-divergences", "cifar5"):
        table = published(study)
        assert "1711.01297" in table.source
        for variant, row in table.rows.items():
            assert variant in row_titles(study)
            assert row.keys() == {"error", "entropy_auc", "outlier_entropy_auc", "seconds"}
            assert row.keys() <= METRICS.keys()
    assert published("digits").rows == {}


def test_best_of_a_column_and_its_ties():
    values = {"map": (1.00, 1.02), "bbb": (1.05, 1.07), "bbh": (1.08, 1.10)}
    records = [
        make_record(variant, seed, metrics={"error": value})
        for variant, two in values.items()
        for seed, value in enumerate(two)
    ]
    table = table_of(*records)
    best = {variant: cell.best for variant, cell in cells(table, "error").items()}
    # Standard errors 0.01 each and two degrees of freedom: told apart from 4.303 · 0.0141 on.
    assert best == {"map": True, "bbb": True, "bbh": False}
    assert table.legend.startswith(
        "Bold: best of its column, or not told apart from it by Welch's t-test (p ≥ 0.05)."
    )
    # With one seed each, only equal numbers are tied.
    single = table_of(*(record for record in records if record.seed == 0))
    assert {v: c.best for v, c in cells(single, "error").items()} == {
        "map": True,
        "bbb": False,
        "bbh": False,
    }
    assert single.legend.startswith(
        "Bold: best number of its column; with one seed each there is no test. In brackets"
    )
    # A single run of one row is compared with the spread of the other's: 12.7 · √(3/2) · 0.0141.
    few = [record for record in records if record.seed == 0 or record.variant == "map"]
    assert {v: c.best for v, c in cells(table_of(*few), "error").items()} == {
        "map": True,
        "bbb": True,
        "bbh": True,
    }
    assert (
        "A row with one seed is taken to vary as the row beside it does." in table_of(*few).legend
    )


def test_the_reference_is_never_the_best():
    records = [
        make_record(variant, study="toy", metrics={"rmse": value})
        for variant, value in {"map": 5.0, "bbh": 4.0, "nuts": 1.0}.items()
    ]
    table = table_of(*records)
    assert [v for v, cell in cells(table, "rmse").items() if cell.best] == ["bbh"]
    assert findings(table)[0].startswith("Bayes by Hypernet has the lowest")


def test_a_reference_does_not_make_seeds_fewer():
    records = [make_record("map", seed, study="toy", metrics={"rmse": 5.0}) for seed in range(3)]
    records.append(make_record("nuts", study="toy", metrics={"rmse": 1.0}))
    assert any(text.startswith("3 seeds per row") for text in caveats_of(*records))


def test_a_reference_is_one_sample_whatever_the_seed():
    records = [
        make_record(variant, seed, study="toy", metrics={"rmse": 4.0, "peak_memory_bytes": seed})
        for variant in ("map", "nuts")
        for seed in range(3)
    ]
    table = table_of(*records)
    assert {row.runs.variant: len(row.runs.entries) for row in table.rows} == {"map": 3, "nuts": 1}
    assert cells(table, "rmse")["nuts"].text == "4.0"
    assert "4.0 ± 0.0" in cells(table, "rmse")["map"].text


def test_the_summary_lists_where_bayes_by_hypernet_is_behind():
    values = {"map": (1.0, 3.0, 5.0), "mnf": (2.0, 1.0, 5.0), "bbh": (3.0, 2.0, 4.0)}
    names = ("rmse", "nll", "distance_to_nuts")
    records = [
        make_record(variant, study="toy", metrics=dict(zip(names, numbers, strict=True)))
        for variant, numbers in {**values, "nuts": (0.0, 0.0, 0.0)}.items()
    ]
    # Not in the last column, and not behind the reference, which is no method to choose.
    assert findings(table_of(*records))[-1] == (
        "Bayes by Hypernet is behind in: RMSE 3.0 (MAP 1.0); NLL 2.0000 (MNF 1.0000)."
    )
    assert behind(table_of(records[0], records[1])) == ""
    # With a better row of its own it is not behind.
    better = dataclasses.replace(
        records[2],
        config={**records[2].config, "epochs": 2},
        metrics={"rmse": 0.5, "nll": 0.5, "distance_to_nuts": 4.0},
    )
    assert behind(table_of(*records, better)) == ""


def test_numbers_that_are_not_finite_are_said_and_not_ranked():
    records = [make_record(v, metrics={"error": e}) for v, e in (("map", math.nan), ("bbh", 1.0))]
    table = table_of(*records)
    assert cells(table, "error")["map"].text == "not finite"
    assert not cells(table, "error")["map"].best
    assert any("not finite" in text for text in caveats_of(*records))


def test_other_settings_are_another_row():
    record = make_record(metrics={"error": 1.0})
    short = dataclasses.replace(record, seed=1, config={**record.config, "epochs": 2})
    table = table_of(record, short)
    assert [row.runs.full_title for row in table.rows] == [
        "Bayes by Hypernet (epochs=2)",
        "Bayes by Hypernet",
    ]


def test_records_older_than_a_setting_are_the_same_row():
    record = make_record(metrics={"error": 1.0})
    older = {name: value for name, value in record.config.items() if name != "precision"}
    table = table_of(record, dataclasses.replace(record, seed=1, config=older))
    assert [len(row.runs.entries) for row in table.rows] == [2]


def test_command_sets_what_differs_from_the_preset():
    record = make_record(preset="corrected")
    changed = {**record.config, "epochs": 3, "hidden": [16, 32], "noise_shared": True}
    records = [dataclasses.replace(record, config=changed, seed=seed) for seed in (0, 4)]
    assert command(records) == (
        "bbh run mnist --preset corrected --method bbh --seed 0 --seed 4 "
        "--set epochs=3 --set hidden=16,32 --set noise_shared=true"
    )
    assert "--set" not in command([record])
    assert command([dataclasses.replace(record, study="bench-cpu")]) == "bbh bench cpu"


def test_caveats_name_what_weakens_the_numbers():
    records = [
        make_record("map", dirty=True),
        make_record("bbh", hardware={"gpu": "A"}, data={"synthetic": "other"}),
    ]
    text = " ".join(caveats_of(*records))
    for word in ("One seed", "different hardware", "different data", "uncommitted", "error bars"):
        assert word in text


def test_validation_data_are_not_compared_with_the_paper():
    config = make_record().config | {"split": "validation"}
    records = [make_record(seed=seed, config=config) for seed in range(2)]
    text = markdown_table(records, "mnist", "corrected", "split=validation")
    assert "Bayes by Hypernet" in text
    assert "paper" not in text


class TestNoiseOfTheSearch:
    def rows(self, number, error=1.0, study="mnist", split="validation"):
        config = make_record("bbh", study=study).config | {"split": split}
        return [
            make_record("bbh", study=study, config=config | {"epochs": k}, metrics={"error": error})
            for k in range(1, number + 1)
        ]

    def note(self, records):
        problem = ("split=validation",) if "validation" in records[0].config["split"] else ()
        text = markdown_table(records, records[0].study, "corrected", *problem)
        return text[text.index("Noise") :].strip() if "Noise" in text else ""

    def test_is_that_of_a_share_and_of_the_lowest_of_several(self):
        # √(0.01 · 0.99 / 5000) = 0.141 points; the lowest of ten normal numbers lies 1.54 below.
        assert self.note(self.rows(10)) == (
            "Noise of the search: an error of 1.00 % on 5,000 images has a standard error of 0.14 "
            "points, and that of the seed comes on top. Of 10 rows with equal true errors the "
            "lowest would be 0.22 points too low by luck, or less as far as rows err on the same "
            "images."
        )
        assert "on 2,500 images has a standard error of 0.20 points" in self.note(
            self.rows(2, study="cifar5")
        )
        assert any("Noise of the search" in text for text in caveats_of(*self.rows(3)))

    def test_the_expected_luck_is_that_of_drawn_numbers(self):
        random = np.random.default_rng(0)
        for number in (2, 10):
            drawn = -random.normal(size=(40_000, number)).min(1).mean()
            luck = float(re.search(r"be ([\d.]+) points", self.note(self.rows(number, 50.0)))[1])
            assert luck == pytest.approx(drawn * 100 * math.sqrt(0.25 / 5000), abs=0.02)

    def test_is_silent_where_there_was_no_search(self):
        assert self.note(self.rows(2, split="test")) == ""
        assert "by luck" not in self.note(self.rows(1))
        assert self.note(self.rows(2, error=0.0)) == ""


def test_attacks_on_other_images_are_another_table():
    whole = make_record(study="mnist-attacks")
    few = make_record(study="mnist-attacks", config=whole.config | {"attack_images": 300})
    groups = group([Entry(whole), Entry(few)])
    assert [one.problem for one in groups] == [(), ("attack_images=300",)]


def test_labels_tell_rows_of_one_method_apart():
    config = make_record("bbh").config
    records = [
        make_record("map"),
        make_record("bbh"),
        make_record("bbh", config=config | {"prior": "fan_in"}),
    ]
    (one,) = group([Entry(record) for record in records])
    labels = {runs.label for runs in one.rows}
    assert labels == {"MAP", "Bayes by Hypernet", "Bayes by Hypernet (prior=fan_in)"}
    # A method that stands alone needs no settings: the table has them.
    (one,) = group([Entry(records[0]), Entry(records[2])])
    assert {runs.label for runs in one.rows} == {"MAP", "Bayes by Hypernet"}


def test_long_names_in_legends_get_lines_of_their_own():
    with figure_style():
        figure, axes = new_axes()
        axes.plot([0, 1], label="MAP")
        axes.plot([1, 0], label="Bayes by Hypernet (" + ", ".join(["noise_dim=64"] * 6) + ")")
        before = figure.get_size_inches()[1]
        legend_below(figure, axes)
        inches = figure.dpi_scale_trans.inverted()
        box = figure.legends[0].get_window_extent().transformed(inches)
    width, height = figure.get_size_inches()
    assert 0 <= box.x0 < box.x1 <= width
    assert before + box.height - 0.1 <= height <= before + box.height + 0.1


def test_benchmarks_are_no_studies(tmp_path):
    make_record(study="bench-cpu").write(tmp_path / "bench")
    with pytest.raises(RecordError, match="are of benchmarks, not of studies"):
        collect([tmp_path])
    make_record().write(tmp_path / "run")
    assert [group.study for group in collect([tmp_path])] == ["mnist"]


def test_markdown_table():
    records = [make_record(seed=s, metrics={"error": e}) for s, e in enumerate(ERRORS["bbh"])]
    text = markdown_table(records, "mnist", "corrected")
    assert "| Bayes by Hypernet | 0.56 ± 0.06 (paper 0.56 ≈) | 3 |" in text
    assert markdown_table(records, "mnist", "paper") == ""


def test_markdown_table_says_in_what_all_rows_differ_from_the_preset():
    as_preset = make_record()
    changed = make_record(config=as_preset.config | {"epochs": 20, "split": "validation"})
    text = markdown_table([changed], "mnist", "corrected", "split=validation")
    assert "there is no test. In all rows epochs=20. Noise of the search" in text
    assert "In all rows" not in markdown_table([as_preset], "mnist", "corrected")


def load_tables():
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "docs" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_of_readme_and_docs_are_up_to_date():
    assert load_tables().main(check=True) == 0


def test_tables_are_filled_in_from_records(tmp_path, capsys):
    tables = load_tables()
    readme = tmp_path / "README.md"
    readme.write_text("a\n<!-- table: mnist corrected -->\nold\n<!-- /table -->\nb\n")
    assert tables.main(tmp_path, check=True) == 0  # no records: nothing to compare with
    assert "0 records, 1 files" in capsys.readouterr().out
    make_record(metrics={"error": 1.5}).write(tmp_path / "results" / "bbh-0")
    assert tables.main(tmp_path, check=True) == 1
    assert "old" in readme.read_text(encoding="utf-8")
    assert tables.main(tmp_path) == 1
    text = readme.read_text(encoding="utf-8")
    assert "| Bayes by Hypernet | 1.50 (paper 0.56 ?) | 1 |" in text
    assert "\nold\n" not in text
    assert text.endswith("b\n")
    assert tables.main(tmp_path, check=True) == 0


def test_training_times_are_sums_over_epochs():
    epochs = [{"step": 100, "seconds": 2.0}, {"step": 200, "seconds": 3.0}]
    records = [
        make_record("bbh", history=epochs),
        make_record("map", history=epochs[:1]),
        make_record("bbh", seed=1, history=epochs[:1]),
        make_record("bbh", study="mnist-attacks", history=epochs[:1]),
        make_record("bbh", config=make_record().config | {"split": "validation"}, history=epochs),
    ]
    lines = training_table(records, "mnist", "corrected").splitlines()
    assert lines[2:] == [
        "| MAP | 1 | 100 | 2.0 | 20.00 |",
        "| Bayes by Hypernet | 2 | 200 | 5.0 | 25.00 |",
        "| all |  |  | 7.0 |  |",
    ]
    assert training_table(records, "cifar5", "corrected") == ""
