"""A small version of every campaign, and that a broken promise is noticed."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

from bbh.files import read_json
from faults.damage import REFUSED, damage
from faults.full_disk import fill_disk
from faults.kills import SAME, fingerprint, kill_fit, kill_processes, kill_studies
from faults.record import write_record
from faults.specimens import SPECIMENS
from faults.tally import Tally, table

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits and signals are those of Linux"
)


def assert_kept(tally: Tally, number: int) -> None:
    assert tally.broken == []
    assert tally.counts.total() == number


@pytest.mark.parametrize("kind", SPECIMENS)
def test_damaged_files(kind):
    tally = damage(kind, 30, seed=1)
    assert_kept(tally, 30)
    assert tally.counts[REFUSED] > 5


def test_full_disks():
    tally = fill_disk(20, seed=1)
    assert_kept(tally, 20)
    assert len(tally.counts) == 2  # some are small enough


@pytest.mark.parametrize("aimed", [False, True])
def test_kills_of_fit(aimed):
    assert_kept(kill_fit(1, seed=1, aimed=aimed), 1)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_a_kill_of_one_of_two_processes():
    assert_kept(kill_processes(1, seed=1), 1)


def test_a_kill_of_a_study():
    assert_kept(kill_studies(1, seed=1), 1)


def test_what_breaks_a_promise_is_counted_and_shown():
    tally = Tally("kills", (SAME,))
    tally.add(SAME, "number 0")
    tally.add("different", "number 1")
    assert tally.broken == ["kills, number 1: different"]
    row = table([tally]).splitlines()[1]
    assert " ".join(row.split()) == "kills 2 1 1 different, 1 identical"


def test_counts_are_kept_for_the_docs(tmp_path):
    tally = Tally("kills", (SAME,))
    for outcome in [SAME] * 1200 + ["different"]:
        tally.add(outcome, "number 1")
    write_record(tmp_path / "results" / "faults" / "campaign.json", 18, 90.4, [tally])
    record = read_json(tmp_path / "results" / "faults" / "campaign.json")
    assert (record["seed"], record["seconds"]) == (18, 90)
    page = tmp_path / "README.md"
    page.write_text("<!-- faults: campaign -->\n<!-- /faults -->\n")
    tables = Path(__file__).parents[2] / "docs" / "tables.py"
    assert runpy.run_path(str(tables))["main"](tmp_path) == 1
    lines = page.read_text().splitlines()
    assert "| kills | 1,201 | 1 | 1 different, 1,200 identical |" in lines
    assert any(line.startswith("Seed 18, 2 minutes on ") for line in lines)


def test_damage_that_no_reader_refuses_is_noticed(monkeypatch):
    """A reader without a checksum breaks the promise that there is one."""
    from faults import damage as module

    without = SPECIMENS["CIFAR, binary"]._replace(digest=True)
    monkeypatch.setitem(SPECIMENS, "CIFAR, binary", without)
    # In this process: another one would not know of the change.
    monkeypatch.setattr(module, "run", lambda work, *arguments: work(*arguments) or 0)
    monkeypatch.setattr(module, "_limit_memory", lambda: None)
    monkeypatch.setattr(module.sys, "addaudithook", lambda hook: None)
    monkeypatch.setattr("bbh_studies.datasets.cifar10.IMAGES_PER_FILE", 40)
    tally = damage("CIFAR, binary", 20, seed=1)
    assert tally.counts["accepted though damaged"] == len(tally.broken) > 5


def test_fingerprints_tell_every_bit():
    value = torch.tensor([1.0, 2.0])
    other = value.clone()
    other.view(torch.int32)[1] += 1
    assert fingerprint([value]) == fingerprint([value.clone()])
    assert len({fingerprint(one) for one in (value, other, value.double(), {"a": value})}) == 4
