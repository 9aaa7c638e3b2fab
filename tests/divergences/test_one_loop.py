"""Computations on rows as one compiled loop: against torch's own operations."""

import pytest
import torch

from bbh import compiled
from bbh.divergences import one_loop

pytestmark = pytest.mark.skipif(compiled.compiler() is None, reason="there is no C++ compiler")


@pytest.fixture(autouse=True)
def _compiling(monkeypatch):
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")


def everything(first, second):
    """Uses all operations once; with rows of ones and zeros to choose by."""
    a, b, c = first
    (d,) = second
    chosen = torch.gt(a, b, out=torch.empty_like(a))
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    return (d * d + 2).log() - 1 / (-low - 2), [
        torch.lerp(c, d, chosen),
        high / (c * c + 0.5).sqrt() + torch.zeros_like(c),
    ]


@pytest.fixture(scope="module")
def loop():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TORCH_COMPILE_DISABLE", raising=False)
        return one_loop.one_loop(everything, (3, 1))


@pytest.mark.parametrize("width", [1, 7, 1000])
@pytest.mark.parametrize("threads", [1, 2])
def test_all_operations(loop, monkeypatch, width, threads):
    monkeypatch.setattr(one_loop, "_COLUMNS_PER_PART", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    first, second = torch.rand(3, width), torch.randn(1, width)
    total, rows = loop(first, second)
    terms, expected = everything(list(first), list(second))
    torch.testing.assert_close(total, terms.double().sum().float())
    torch.testing.assert_close(rows, torch.stack(expected))


def test_no_bit_depends_on_the_number_of_threads(loop, monkeypatch):
    first, second = torch.rand(3, 200_001), torch.randn(1, 200_001)
    found = []
    for threads in (1, 2, 3, 16):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append(loop(first, second))
    for total, rows in found[1:]:
        assert torch.equal(total, found[0][0])
        assert torch.equal(rows, found[0][1])


def test_tables_may_be_views(loop):
    first, second = torch.rand(100, 3).T, torch.randn(1, 200)[:, ::2]
    rows = loop(first, second)[1]
    torch.testing.assert_close(rows, torch.stack(everything(list(first), list(second))[1]))


def test_defaults_of_torch_do_not_matter(loop):
    first, second = torch.rand(3, 10), torch.randn(1, 10)
    with torch.device("meta"):
        total, rows = loop(first, second)
    torch.testing.assert_close(rows, torch.stack(everything(list(first), list(second))[1]))
    assert total.isfinite()


def test_logarithm_and_order():
    loop = one_loop.one_loop(
        lambda rows: (rows[0], [rows[0].log(), torch.minimum(*rows), torch.maximum(*rows)]), (2,)
    )
    assert loop is not None
    numbers = torch.logspace(-37, 38, 10_001)
    logarithms = loop(torch.stack([numbers, numbers.flip(0)]))[1][0]
    error = (logarithms.double() - numbers.double().log()).abs()
    assert (error / numbers.log().abs().clamp(min=1)).max() < 2e-7
    # What is no number has no logarithm, and is still there after sorting.
    strange = torch.tensor([torch.nan, torch.inf])
    logarithms, low, high = loop(torch.stack([strange, torch.ones(2)]))[1]
    assert logarithms.isnan().all()
    assert sorted((low[0].isnan().item(), high[0].isnan().item())) == [False, True]
    assert (low[1], high[1]) == (1, torch.inf)


def test_no_compiler_is_no_problem(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -v")
    assert one_loop.one_loop(everything, (3, 1)) is None


def test_nor_is_one_that_fails(monkeypatch, caplog):
    monkeypatch.setenv("CXX", "false")
    with caplog.at_level("INFO", logger="bbh"):
        assert one_loop.one_loop(everything, (3, 1)) is None
    assert "without a compiled loop" in caplog.text


def test_it_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    assert one_loop.one_loop(everything, (3, 1)) is None


def test_a_compiler_of_ones_own(monkeypatch):
    (command,) = compiled.compiler()
    monkeypatch.setenv("CXX", f"env {command}")
    assert one_loop.one_loop(everything, (3, 1)) is not None
