"""Posteriors that version 0.1 wrote are read, and predict as they did then."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import bbh

FOLDER = Path(__file__).parent / "written-by-0.1"
PREDICTIONS = json.loads((FOLDER / "predictions.json").read_text())


@pytest.mark.parametrize("name", PREDICTIONS)
def test_reads_and_predicts_as_then(name):
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    torch.manual_seed(0)
    inputs = torch.randn(12, 3)[:2]
    posterior = bbh.load(FOLDER / f"{name}.safetensors", network)
    torch.manual_seed(5)
    found = bbh.predict(posterior, inputs, num_samples=6).mean
    # The same draws: random numbers of the CPU are those of every machine.
    torch.testing.assert_close(found, torch.tensor(PREDICTIONS[name]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PREDICTIONS)
def test_what_is_read_can_be_written_again(name, tmp_path):
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    posterior = bbh.load(FOLDER / f"{name}.safetensors", network)
    bbh.save(posterior, tmp_path / "again")
    again = bbh.load(tmp_path / "again", network)
    assert again.recipe == posterior.recipe
