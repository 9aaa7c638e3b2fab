"""Claims about results: what they mean, what makes them fail, and that the pages' own hold."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from scipy import stats

from bbh_studies.report.claim_rows import ClaimError, NamedTables
from bbh_studies.report.claims import check_claim
from studies.report_records import make_record

ROOT = Path(__file__).parent.parent.parent
# Errors of three seeds. Welch: map against bbb p = 0.29, map against bbh p = 0.0004.
ERRORS = {"map": (1.0, 1.1, 1.2), "bbb": (1.1, 1.2, 1.3), "bbh": (2.0, 2.1, 2.2)}
RECORDS = [
    make_record(variant, seed, metrics={"error": error, "seconds": 10 * error})
    for variant, errors in ERRORS.items()
    for seed, error in enumerate(errors)
]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = load("claims")


def holds(statement: str, records=RECORDS, table: str = "mnist corrected") -> bool:
    return not check_claim(f"{table}; {statement}", NamedTables(records))


def test_pages_claim_no_more_than_their_tables_show(capsys):
    assert PAGES.main() == 0, capsys.readouterr().out


class TestStatements:
    def test_lower_means_told_apart(self):
        assert stats.ttest_ind(ERRORS["map"], ERRORS["bbb"], equal_var=False).pvalue > 0.05
        assert stats.ttest_ind(ERRORS["map"], ERRORS["bbh"], equal_var=False).pvalue < 0.05
        assert holds("error: map lower than bbh")
        assert not holds("error: map lower than bbb")
        assert holds("error: map lower in mean than bbb")
        assert not holds("error: bbb lower in mean than map")
        assert not holds("error: bbh lower than map")

    def test_higher_is_the_opposite(self):
        assert holds("error: bbh higher than map, bbb")
        assert not holds("error: bbb higher than map")
        assert holds("error: bbb higher in mean than map")

    def test_like_means_not_told_apart(self):
        assert holds("error: map like bbb")
        assert not holds("error: map like bbh")

    def test_every_pair_must_hold(self):
        assert holds("error: map, bbb lower than bbh")
        failures = check_claim(
            "mnist corrected; error: map lower than others", NamedTables(RECORDS)
        )
        assert failures == [
            "mnist corrected: error of map (1.10 ± 0.10) is not told to be lower than error of bbb "
            "(1.20 ± 0.10) (p = 0.288)."
        ]
        assert holds("error: map lower than others but bbb")
        assert not holds("error, seconds: map lower than others")
        assert holds("error, seconds: bbh higher than others; error: map like bbb")

    def test_between_is_the_number_of_the_table(self):
        assert holds("error: map between 1.1 and 1.1")
        assert not holds("error: map between 1.11 and 2")
        assert holds("error: bbh between 1.9 and 2 times map")  # 2.1 / 1.1
        assert not holds("error: bbh between 2 and 3 times map")
        shares = [make_record("map", metrics={"pgd_accuracy": 0.25}, study="mnist-attacks")]
        assert holds("pgd_accuracy: map between 25 and 25", shares, "mnist-attacks corrected")

    def test_one_seed_is_compared_in_mean_only(self):
        single = [record for record in RECORDS if record.seed == 0]
        assert holds("error: map lower in mean than bbh", single)
        (failure,) = check_claim("mnist corrected; error: map lower than bbh", NamedTables(single))
        assert "one seed each cannot be tested" in failure
        assert not holds("error: map like bbb", single)

    def test_a_reference_is_not_among_the_others(self):
        records = [
            make_record(variant, seed, study="toy", metrics={"rmse": rmse + seed / 10})
            for variant, rmse in {"map": 5.0, "bbh": 4.0, "nuts": 1.0}.items()
            for seed in range(3)
        ]
        assert holds("rmse: bbh lower than others", records, "toy corrected")
        assert holds("rmse: nuts lower than bbh", records, "toy corrected")


class TestRows:
    def records(self, *changes: dict[str, object]):
        config = make_record("bbh").config
        return [
            make_record("bbh", config=config | change, metrics={"error": float(number)})
            for number, change in enumerate(changes)
        ]

    def test_settings_tell_rows_of_one_name_apart(self):
        records = self.records({}, {"epochs": 2}, {"epochs": 3}, {"epochs": 3, "noise_dim": 9})
        assert holds("error: bbh between 0 and 0", records)  # the one without changes
        assert holds("error: bbh[epochs=2] between 1 and 1", records)
        assert holds("error: bbh[epochs=3] between 2 and 2", records)  # exactly these changes
        assert holds("error: bbh[noise_dim=9] between 3 and 3", records)
        assert holds("error: bbh lower in mean than bbh[epochs=2], bbh[noise_dim=9]", records)

    def test_a_name_is_enough_where_one_row_has_it(self):
        assert holds("error: bbh between 0 and 0", self.records({"epochs": 2}))

    def test_names_that_fit_several_rows_or_none(self):
        records = self.records({"epochs": 2}, {"epochs": 3})
        with pytest.raises(ClaimError, match="several rows have the name bbh"):
            holds("error: bbh between 0 and 1", records)
        with pytest.raises(ClaimError, match=r"no row has the name bbh\[epochs=4\]"):
            holds("error: bbh[epochs=4] between 0 and 1", records)

    def test_sets_of_uci_ranks_and_published_numbers(self):
        records = [
            make_record(
                variant,
                seed,
                study="uci",
                preset="defaults",
                config=make_record(variant, study="uci", preset="defaults").config
                | {"dataset": name},
                metrics={"nll": nll + seed / 100, "constant_nll": 9.0},
            )
            for (name, variant), nll in {
                ("boston", "map"): 3.0,
                ("boston", "bbh"): 2.0,
                ("yacht", "map"): 1.0,
                ("yacht", "bbh"): 0.5,
            }.items()
            for seed in range(3)
        ]
        for sets in ("boston", "boston yacht", "all"):
            assert holds("nll: bbh lower than map, constant", records, f"uci defaults {sets}")
            assert holds("nll: bbh lower than others", records, f"uci defaults {sets}")
        assert holds("nll: bbh lower than published-ensemble", records, "uci defaults all")
        assert not holds("nll: map lower than published-ensemble", records, "uci defaults all")
        assert holds("nll: map between 2 and 2; nll: bbh between 1 and 1", records, RANKS)
        with pytest.raises(ClaimError, match="'wine' is no set of uci defaults: boston, yacht"):
            holds("nll: bbh lower than map", records, "uci defaults wine")


RANKS = "uci defaults mean-rank"


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ("mnist corrected", "claims nothing"),
        ("mnist; error: map like bbb", "name a study and a preset"),
        ("mnist paper; error: map like bbb", "no records of mnist paper"),
        ("mnist corrected; map like bbb", "write metric: statement"),
        ("mnist corrected; error: map best", "write “A lower than B”"),
        ("mnist corrected; nll: map like bbb", "map has no nll"),
        ("mnist corrected; error: map between low and high", "'low' is no number"),
        ("mnist corrected; error: map, bbb, bbh lower than others", "nothing to compare"),
    ],
)
def test_claims_that_cannot_be_understood(claim, message):
    with pytest.raises(ClaimError, match=message):
        check_claim(claim, NamedTables(RECORDS))


class TestPages:
    TABLE = "<!-- table: mnist corrected -->\nbest | worse\n<!-- /table -->\n\n"

    @pytest.mark.parametrize(
        "text",
        [
            "MAP is best.",
            "It is good. MAP\nmakes fewer\nerrors. It is good. <!-- claim: t; m: a like b -->",
            "It is not told\napart. It is good. <!-- no claim -->",
            "Nothing. <!-- no claim --> MAP errs as little as others.",
            "- It is good.\n- It has the most errors.\n- It is good. <!-- no claim -->",
            "(It is good.) It beats MAP:",
        ],
    )
    def test_a_sentence_that_compares_needs_a_comment_of_its_own(self, text):
        (found,) = PAGES.unclaimed(self.TABLE + text)
        assert "without a claim" in found

    @pytest.mark.parametrize(
        "text",
        [
            "MAP is best. <!-- claim: mnist corrected; error: map lower than others -->",
            "MAP is\nbest and closest <!-- no claim --> to it. It is at least good.",
            "It is good.\n\n```bash\nbest\n```\n\n# Best\n\n| best | worse |\n\n![best](best.svg)",
            "- One is better. <!-- claim: a b; c:\n  d like e --> <!-- claim: f g; h: i like j -->"
            "\n- Two.",
        ],
    )
    def test_other_sentences_need_none(self, text):
        assert PAGES.unclaimed(self.TABLE + text) == []

    def test_pages_without_results_are_not_looked_at(self):
        assert PAGES.unclaimed("MAP is best.") == []

    def test_false_and_broken_claims_are_found_wherever_they_are(self):
        text = (
            "a <!-- claim: mnist corrected;\nerror: map lower than bbb --> b <!-- claim: mnist "
            "corrected; error: map like bbb --> c <!-- claim: nowhere corrected; error: a like b "
            "-->"
        )
        first, second = PAGES.false_claims(text, NamedTables(RECORDS))
        assert "error of map (1.10 ± 0.10) is not told to be lower" in first
        assert "no records of nowhere corrected" in second

    def test_a_comment_must_not_break_a_paragraph(self):
        broken = "One sentence.\n<!-- claim: a b; c: d like e -->\nAnother."
        assert PAGES.misplaced(broken) == ["line 2 begins with a claim: let a word come first."]
        assert PAGES.misplaced("One. <!-- claim: a b;\nc: d like e -->\nAnother.") == []
