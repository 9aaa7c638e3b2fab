"""The report as a page: complete in itself, escaped, and what it does with broken input."""

import builtins
import dataclasses
import math
import re
import sys
from html.parser import HTMLParser

import matplotlib as mpl
import numpy as np
import pytest

from bbh_studies.record import RecordError
from bbh_studies.report import write_report
from bbh_studies.report.collect import collect
from studies.report_records import make_record, write_raw


class Page(HTMLParser):
    """Collects what the tests ask about."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.ids, self.links, self.tags = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "data", "action", "srcset"):
                (self.links if tag == "a" else self.addresses).append(value)
            if name == "id":
                self.ids.append(value)


def test_page_is_self_contained(report):
    text = report.read_text(encoding="utf-8")
    page = Page(text)
    assert all(address.startswith("data:") for address in page.addresses)
    outside = [link for link in page.links if not link.startswith("#")]
    assert outside == ["https://arxiv.org/abs/1711.01297"]
    assert all(link[1:] in page.ids for link in page.links if link not in outside)
    assert len(page.ids) == len(set(page.ids))
    assert not {"script", "iframe", "object"} & set(page.tags)
    assert "url(" not in text
    assert "@import" not in text
    assert report.stat().st_size < 5e6


def test_the_legend_explains_what_occurs(report, tmp_path):
    def legend(page):
        text = page.read_text(encoding="utf-8")
        return text[text.index('id="reading"') :].partition("</section>")[0]

    everything = ("▲", "▼", "≈", "?", "Within noise", "Bold")
    assert [sign for sign in everything if sign not in legend(report)] == []
    # Digits have no published numbers, and a single row has no best one.
    make_record("map", study="digits").write(tmp_path / "digits")
    alone = legend(write_report([tmp_path / "digits"], tmp_path / "digits.html"))
    assert [sign for sign in (*everything, "attacks") if sign in alone] == []
    # One seed on MNIST: a single mark.
    make_record("map").write(tmp_path / "mnist")
    single = legend(write_report([tmp_path / "mnist"], tmp_path / "mnist.html"))
    assert "one seed, no noise estimate" in single
    assert [sign for sign in ("▲", "▼", "≈", "Within noise") if sign in single] == []


def test_markdown_twin_has_the_same_numbers(report):
    pattern = re.compile(r"\d[\d,.]* ± \d[\d,.]*")
    page = re.findall(r'<span class="value[^"]*">(.*?)</span>', report.read_text(encoding="utf-8"))
    twin = report.with_suffix(".md").read_text(encoding="utf-8")
    rows = "\n".join(line for line in twin.splitlines() if line.startswith("|"))
    spread = [text for text in page if pattern.fullmatch(text)]
    assert spread
    assert sorted(spread) == sorted(pattern.findall(rows))
    assert "(paper 0.56 ≈)" in twin


def test_same_records_same_page_and_no_trace_in_matplotlib(report, tmp_path):
    before = dict(mpl.rcParams)
    again = write_report([report.parent / "runs" / "toy"], tmp_path / "toy.html")
    twice = write_report([report.parent / "runs" / "toy"], tmp_path / "toy2.html")
    assert again.read_bytes() == twice.read_bytes()
    assert dict(mpl.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not mpl.pyplot.get_fignums()


def test_text_of_records_is_escaped(tmp_path):
    evil = "<script>alert('x')</script>|`"
    record = make_record(
        "bbh", preset=evil, commit=evil, hardware={"gpu": evil}, metrics={evil: 1.0}
    )
    record.write(tmp_path / "runs")
    page = write_report([tmp_path], tmp_path / "report.html")
    twin = page.with_suffix(".md").read_text(encoding="utf-8")
    assert "script" not in Page(page.read_text(encoding="utf-8")).tags
    # Within code Markdown knows no HTML.
    assert "<script>" not in re.sub(r"`[^`]*`", "", twin.replace("\\`", ""))


def test_markdown_of_records_is_escaped(tmp_path):
    """No heading, list, link, table row or code comes from what a record says."""
    evil = "# big\n\n- **bold** [link](http://x) ~~gone~~ `code` | cell\n\n1. one"
    config = make_record().config | {"bayesian": [evil], "divergence": evil}
    record = make_record("bbh", commit=evil, config=config, hardware={"gpu": evil})
    record = dataclasses.replace(record, metrics=record.metrics | {evil: 1.0}, data={evil: evil})
    record.write(tmp_path / "runs")
    page = write_report([tmp_path], tmp_path / "report.html")
    lines = page.with_suffix(".md").read_text(encoding="utf-8").splitlines()
    told = [line for line in lines if "big" in line]
    assert len(told) > 5
    for line in told:
        outside = re.sub(r"(?<!\\)`[^`]*(?<!\\)`", "", line)  # without code
        if "big" in outside:
            assert not re.search(r"(?<!\\)([#\[~]|\*\*b)", outside.lstrip("- |")), outside
    assert not [line for line in lines if line.lstrip().startswith(("1. one", "- **bold"))]


def test_missing_arrays_and_metrics_leave_things_out(tmp_path):
    make_record("map", metrics={"error": 1.0}).write(tmp_path / "a")
    make_record("bbh", metrics={"nll": 0.1, "new_one": 3.0}).write(
        tmp_path / "b", {"entropy": np.zeros(3), "rotation_three_images": np.zeros((2, 28, 28))}
    )
    text = write_report([tmp_path], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<img" not in text
    assert "new one" in text


def test_a_run_that_failed_is_left_out_of_figures(tmp_path):
    """Numbers that are not finite, empty arrays, and values no column was made for."""
    broken = {
        "entropy": np.full(9, np.nan),
        "outlier_entropy": np.zeros(0),
        "confidence": np.ones(9),
    }
    history = [{"epoch": 1, "total": math.nan}, {"epoch": 2, "total": math.inf}, {"epoch": 3}]
    metrics = {"error": math.inf, "nll": 1e30, "ece": -math.inf}
    for seed in (0, 1):
        record = make_record(seed=seed, metrics=metrics, history=history)
        record.write(tmp_path / str(seed), broken | {"correct": np.zeros(0, bool)})
    text = write_report([tmp_path], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<img" not in text
    assert "1.00e+30" in text
    assert text.count("not finite") > 2


def test_no_records(tmp_path):
    with pytest.raises(RecordError, match=r"there is no folder .*nowhere"):
        write_report([tmp_path / "nowhere"], tmp_path / "report.html")
    with pytest.raises(RecordError, match=rf"no records below {tmp_path}.*bbh run"):
        write_report([tmp_path], tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    ["{", "[]", {"schema": 1}, {**dataclasses.asdict(make_record()), "metrics": {"error": "high"}}],
    ids=["no JSON", "a list", "lacks fields", "a word for a number"],
)
def test_broken_record_is_named(tmp_path, content):
    path = write_raw(tmp_path / "runs" / "record.json", content)
    with pytest.raises(RecordError, match=re.escape(str(path))):
        collect([tmp_path])


def test_broken_arrays_are_named(tmp_path):
    make_record().write(tmp_path)
    (tmp_path / "arrays.npz").write_bytes(b"nothing")
    with pytest.raises(RecordError, match=r"arrays\.npz"):
        write_report([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_contradicting_copies_are_refused_and_equal_ones_count_once(tmp_path):
    make_record().write(tmp_path / "a")
    make_record().write(tmp_path / "b")
    assert len(collect([tmp_path, tmp_path / "a"])[0].records) == 1
    make_record(metrics={"error": 9.0}).write(tmp_path / "c")
    with pytest.raises(RecordError, match="same run"):
        collect([tmp_path])


def test_missing_jinja_names_the_extra(tmp_path, monkeypatch):
    make_record().write(tmp_path)
    real = builtins.__import__

    def without(name, *rest):
        if name == "jinja2":
            raise ImportError("No module named 'jinja2'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'bayes-by-hypernet\[studies\]'"):
        write_report([tmp_path], tmp_path / "report.html")
