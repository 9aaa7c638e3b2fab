"""Tables by two settings: which row and column a record belongs to, and what is bold."""

from bbh_studies.report import pivot_table
from bbh_studies.studies import find_study
from studies.report_records import make_record


def record(seed: int, nll: float, variant: str = "bbh", **settings):
    config = {**find_study("uci").row(variant, "defaults").flat, **settings}
    return make_record(
        variant, seed, study="uci", preset="defaults", config=config, metrics={"nll": nll}
    )


def shown(records, down="units,layers"):
    return pivot_table(
        records, "uci", "defaults", "nll", down, "temperature", "dataset=boston"
    ).splitlines()


def test_rows_and_columns_are_values_of_settings():
    records = [
        record(seed, nll + noise, units=units, temperature=temperature)
        for seed, noise in ((0, -0.02), (1, 0.02))
        for units, temperature, nll in (
            (500, 1.0, 4.0),
            (500, 0.1, 2.0),
            (50, 1.0, 2.0),
            (50, 0.1, 3.0),
            (50, 0.5, 1.0),  # the other row lacks it
        )
    ]
    records += [record(seed, 9.0 + seed, "map") for seed in (0, 1)]
    lines = shown(records)
    assert lines[0] == "|  | temperature=1 | temperature=0.1 |"
    assert lines[2:5] == [
        "| Bayes by Hypernet, units=50, layers=1 | **2.00 ± 0.03** | 3.00 ± 0.03 |",
        "| Bayes by Hypernet, units=500, layers=1 | 4.00 ± 0.03 | **2.00 ± 0.03** |",
        "| MAP, units=0, layers=1 | 9.50 ± 0.71 |  |",
    ]
    assert lines[6].startswith("NLL, mean ± standard deviation over 2 seeds. Bold:")


def test_settings_that_are_newer_than_a_record_had_their_default():
    old = record(0, 2.0, temperature=0.1)
    del old.config["layers"]
    lines = shown([old, record(0, 3.0)], "layers")
    assert lines[2] == "| Bayes by Hypernet, layers=1 | 3.00 | **2.00** |"


def test_nothing_is_shown_without_records():
    assert not shown([make_record()])
