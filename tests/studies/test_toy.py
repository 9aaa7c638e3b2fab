"""The toy study: its data, its measures, and runs that leave records."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from scipy import stats

from bbh.files import sha256
from bbh.predictive import RegressionPredictive
from bbh_studies.arrays import read_arrays
from bbh_studies.problems.toy import measures
from bbh_studies.problems.toy import train_and_measure as toy
from bbh_studies.problems.toy.data import load_toy
from bbh_studies.problems.toy.study import toy_network
from bbh_studies.record import Record
from bbh_studies.run import train
from bbh_studies.run.run import Run
from bbh_studies.studies import find_study

TOY = find_study("toy")
ROWS = ["map", "ensemble", "bbb", "dropout", "mnf", "bbh", "nuts"]


def predictive_of(locs: torch.Tensor, scale: float) -> RegressionPredictive:
    return RegressionPredictive(locs.mean(0), len(locs), locs, torch.full_like(locs, scale))


def test_data_are_those_of_the_paper():
    data = load_toy(9.0)
    assert len(data.train_inputs) == 20
    assert data.train_inputs.min().item() == pytest.approx(-3.999, abs=1e-3)
    assert data.train_inputs.max().item() == pytest.approx(3.025, abs=1e-3)
    noise = data.train_targets - data.train_inputs**3
    assert noise.std(correction=0).item() == pytest.approx(6.78, abs=5e-3)
    # The other level has the same inputs and the same noise, three times smaller.
    quiet = load_toy(3.0)
    assert torch.equal(quiet.train_inputs, data.train_inputs)
    assert torch.allclose(quiet.train_targets - quiet.train_inputs**3, noise / 3, atol=1e-4)
    assert quiet.fingerprint != data.fingerprint == load_toy(9.0).fingerprint
    assert data.grid[0] == -6
    assert data.grid[-1] == 6
    assert data.grid.shape == data.truth.shape == (500, 1)
    assert data.test_inputs.abs().max() <= 4 <= data.outer_inputs.abs().min()
    assert sum(value.numel() for value in toy_network().parameters()) == 301


def test_wasserstein_agrees_with_scipy_and_a_closed_form():
    random = np.random.default_rng(0)
    first, second = random.normal(size=(30, 4)), random.normal(1.0, 2.0, size=(47, 4))
    expected = [stats.wasserstein_distance(a, b) for a, b in zip(first.T, second.T, strict=True)]
    assert np.allclose(measures.wasserstein(first, second), expected)
    # A shift moves all mass by as much; a point is its mean distance away.
    assert np.allclose(measures.wasserstein(first, first + 3), 3)
    assert np.allclose(measures.wasserstein(np.zeros((1, 4)), first), np.abs(first).mean(0))
    # N(0, 1) and N(0, 2²): E|X|·(2 − 1) = √(2/π).
    normal = random.normal(size=(20_000, 1))
    doubled = 2 * random.normal(size=(20_000, 1))
    assert measures.wasserstein(normal, doubled)[0] == pytest.approx(np.sqrt(2 / np.pi), abs=0.03)


def test_measures_of_a_known_gaussian():
    data = load_toy(9.0)
    everywhere = torch.cat([data.grid, data.test_inputs, data.outer_inputs])
    # Functions 1.8 spreads below the truth: within 95 % of them, which reach to 1.96 spreads.
    # Quantiles of N(0, 1) instead of random draws, so that nothing here is left to chance.
    spread = torch.special.ndtri((torch.arange(1000) + 0.5) / 1000).view(-1, 1, 1)
    draws = everywhere**3 - 1.8 + spread
    found = measures.measure(predictive_of(draws, 9.0), data)
    assert found["coverage_inside"] == found["coverage_outside"] == 1
    assert found["rmse"] == pytest.approx(1.8, abs=0.01)
    assert found["observation_coverage_inside"] == pytest.approx(0.95, abs=0.03)
    # New observations lie N(−1.8, 1 + 81) apart: the mean score of a Gaussian.
    expected = 0.5 * np.log(2 * np.pi * 82) + (81 + 1.8**2) / (2 * 82)
    assert found["nll"] == pytest.approx(expected, abs=0.07)
    assert found["nll_outside"] == pytest.approx(expected, abs=0.07)
    # Two spreads away the truth is outside, and only beyond the data.
    moved = torch.where(everywhere.abs() > 4, draws - 0.6, draws)
    found = measures.measure(predictive_of(moved, 9.0), data)
    assert (found["coverage_inside"], found["coverage_outside"]) == (1, 0)
    apart = measures.distances(predictive_of(moved, 9.0), predictive_of(draws, 9.0), data)
    assert apart["distance_to_nuts_inside"] == pytest.approx(0, abs=1e-4)
    # A third of the grid is outside, and 0.6 away.
    assert apart["distance_to_nuts"] == pytest.approx(0.2, abs=0.01)


def test_legacy_beta_is_the_notebook_s():
    config = TOY.row("bbh", "legacy")
    beta = config.training.make_beta(20, config.problem.count_steps(20))
    assert callable(beta)
    assert [beta(float(step)) for step in range(6)] == [20, 20, 20, 10, 0, 0]
    corrected = TOY.row("bbh", "corrected").training.make_beta(20, 40)
    assert callable(corrected)
    assert corrected(0.0) == 0
    assert corrected(1000.0) == 1


@pytest.mark.parametrize("preset", ["corrected", "legacy"])
def test_presets_have_all_rows(preset):
    configs = TOY.rows(preset)
    assert list(configs) == ROWS
    assert all(config.method.word == row for row, config in configs.items())
    assert {config.flat["noise_scale"] for config in configs.values()} == {9.0}


@pytest.mark.parametrize("method", ROWS)
def test_a_run_writes_a_record_and_what_figures_need(method, tmp_path):
    config = TOY.row(method).with_settings(
        epochs=2, steps_per_epoch=3, anneal_end=1.0, prediction_samples=50
    )
    run = Run(TOY, method, "corrected", 0, config, tmp_path)
    record = toy.train_and_measure(run, device="cpu", progress=False)
    read = Record.read(tmp_path / "record.json")
    assert asdict(read) | {"arrays": ""} == json.loads(json.dumps(asdict(record)))
    assert read.arrays == sha256(tmp_path / "arrays.npz")
    assert {"rmse", "nll", "nll_outside", "coverage_outside", "distance_to_nuts"} <= set(
        record.metrics
    )
    assert all(np.isfinite(value) for value in record.metrics.values())
    # Also of the reference: one half of its chains to the other.
    assert record.metrics["distance_to_nuts"] > 0
    assert len(record.history) == (0 if method == "nuts" else 2)
    arrays = read_arrays(tmp_path)
    num_draws = {"map": 1, "ensemble": 10}.get(method, 20)
    shapes = {name: value.shape for name, value in arrays.items()}
    levels = len(measures.QUANTILE_LEVELS)
    assert shapes == {
        **dict.fromkeys(("grid", "truth", "mean", "std"), (500,)),
        **dict.fromkeys(("train_x", "train_y"), (20,)),
        "quantiles": (levels, 500),
        "quantile_levels": (levels,),
        "draws": (num_draws, 500),
    }
    assert {value.dtype for value in arrays.values()} == {np.dtype("float32")}


def test_another_noise_level_has_no_distance_to_a_reference_it_lacks(tmp_path):
    config = TOY.row("map").with_settings(epochs=1, noise_scale=5.0)
    run = Run(TOY, "map", "corrected", 0, config, tmp_path)
    record = toy.train_and_measure(run, device="cpu", progress=False)
    assert "distance_to_nuts" not in record.metrics
    assert record.metrics["rmse"] > 0


def test_long_histories_are_thinned_to_their_end(tmp_path, monkeypatch):
    monkeypatch.setattr(toy, "LONGEST_HISTORY", 10)
    config = TOY.row("map").with_settings(epochs=26, steps_per_epoch=1)
    run = Run(TOY, "map", "corrected", 0, config, tmp_path)
    history = toy.train_and_measure(run, device="cpu", progress=False).history
    assert [entry["epoch"] for entry in history] == [2, 5, 8, 11, 14, 17, 20, 23, 26]


@pytest.mark.slow
def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    config = TOY.row("bbb").with_settings(epochs=3, anneal_end=1.0)
    whole, broken = (Run(TOY, "bbb", "corrected", 0, config, tmp_path / name) for name in "ab")
    expected = toy.train_and_measure(whole, device="cpu", progress=False)
    real = toy.FullBatches.__iter__
    epochs = []

    def interrupted(self):
        epochs.append(1)
        if len(epochs) == 3:
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(toy.FullBatches, "__iter__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        toy.train_and_measure(broken, device="cpu", progress=False)
    found = toy.train_and_measure(broken, device="cpu", resume=True, progress=False)
    # A look at the targets, two epochs of which the second is interrupted, and two that go on.
    assert len(epochs) == 5
    assert found.metrics["distance_to_nuts"] == expected.metrics["distance_to_nuts"]
