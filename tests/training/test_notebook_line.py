"""Training as a notebook shows it."""

import pytest
import torch

import bbh

display = pytest.importorskip("IPython.display", reason="notebooks need IPython: pip install it")


class Handle:
    """Below a cell: the line that is there now."""

    def __init__(self, first: object):
        self.lines = [repr(first)]

    def update(self, shown: object) -> None:
        self.lines.append(repr(shown))


@pytest.fixture
def cell(monkeypatch):
    """All that was displayed, as in a notebook."""
    handles: list[Handle] = []

    def shown(first: object, *, display_id: bool) -> Handle:
        assert display_id
        handles.append(Handle(first))
        return handles[-1]

    monkeypatch.setattr(display, "display", shown)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    return handles


def train(**options):
    inputs = torch.randn(40, 2)
    posterior = bbh.methods.maximum_a_posteriori(
        torch.nn.Linear(2, 1), bbh.likelihoods.Gaussian(0.1)
    )
    batches = [(inputs, inputs.sum(1, keepdim=True))]
    return bbh.fit(posterior, batches, num_data=40, epochs=3, **options)


def test_one_line_is_written_anew_and_ends_with_the_last_epoch(cell, capsys):
    history = train()
    (handle,) = cell
    assert handle.lines[-1].startswith(f"epoch 3 of 3 · loss {history[-1].total:.3g} · nll ")
    assert capsys.readouterr().out == f"{history.comparison}\n"


def test_validation_is_in_the_line(cell):
    inputs = torch.randn(10, 2)
    train(validation=[(inputs, inputs.sum(1, keepdim=True))])
    assert " · validation error " in cell[0].lines[-1]


def test_without_progress_a_cell_stays_empty(cell, capsys):
    train(progress=False)
    assert cell == []
    assert capsys.readouterr().out == ""
