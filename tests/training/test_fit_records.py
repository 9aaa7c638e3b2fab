"""fit: what it tells on the way, and what it leaves behind."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from scenarios import mlp
from training.small import (
    Categorical,
    assert_same_state,
    dataset,
    fit,
    hypernet,
    point,
    sgd,
)


class TestRecords:
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_tensorboard(self, tmp_path):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        loader = DataLoader(dataset(), batch_size=4)
        history = fit(point(), loader, 3, validation=loader, log_dir=tmp_path)
        events = EventAccumulator(str(tmp_path)).Reload()
        assert {"train/total", "train/nll", "train/complexity", "validation/nll"} <= set(
            events.Tags()["scalars"]
        )
        for tag, wanted in (
            ("train/total", [record.total for record in history]),
            ("validation/nll", [record.validation["nll"] for record in history]),
        ):
            scalars = events.Scalars(tag)
            assert [one.step for one in scalars] == [1, 2, 3]
            assert [one.value for one in scalars] == pytest.approx(wanted)

    def test_history_as_json(self, tmp_path):
        loader = DataLoader(dataset(), batch_size=4)
        history = fit(point(), loader, 3, validation=loader)
        history.save(tmp_path / "history.json")
        read = json.loads((tmp_path / "history.json").read_text(encoding="utf-8"))
        assert {"best_epoch": None, "epochs": history.to_dicts()}.items() <= read.items()
        assert [record["epoch"] for record in read["epochs"]] == [1, 2, 3]
        assert read["epochs"][1]["validation"]["nll"] == history[1].validation["nll"]
        assert history[-1] is history.records[2]
        assert [record.epoch for record in history[1:]] == [2, 3]
        assert len(list(history)) == len(history) == 3

    def test_progress_bar(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")  # a narrow terminal cuts the numbers off
        loader = DataLoader(dataset(), batch_size=4)
        fit(point(), loader, 2, validation=loader, progress=True)
        shown = capsys.readouterr().out
        assert "nll" in shown
        assert "2/2" in shown
        fit(point(), loader, 2)
        assert capsys.readouterr().out == ""

    def test_posterior_is_left_ready_to_predict(self):
        posterior = bbh.methods.bayes_by_backprop(
            mlp(), Categorical(), sampling=bbh.methods.Sampling.LOCAL
        )
        fit(posterior, DataLoader(dataset(), batch_size=4))
        assert not posterior.training
        assert not posterior.network.training

    def test_a_second_call_goes_on_from_the_first(self):
        network, loader = nn.Linear(4, 3), DataLoader(dataset(), batch_size=4)
        twice, once = point(network), point(network)
        fit(twice, loader, 1, optimizer=sgd(0.1))
        fit(twice, loader, 2, optimizer=sgd(0.1))
        fit(once, loader, 3, optimizer=sgd(0.1))
        assert_same_state(twice.state_dict(), once.state_dict())

    def test_training_learns(self):
        """Separable classes, every method's default settings: the error falls to zero."""
        inputs = torch.randn(60, 4)
        loader = DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(-1)), 20, shuffle=True)
        posterior = hypernet()
        first, *_, last = fit(posterior, loader, 40, learning_rate=1e-2)
        assert last.nll < 0.3 * first.nll
        assert bbh.evaluate(posterior, loader, 20)["error"] < 10
