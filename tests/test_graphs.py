"""Recorded steps: the same training as one kernel at a time. A plain call stands in for a graph."""

import copy

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh import graphs
from scenarios import BatchNormNet, mlp, over_methods


@pytest.fixture
def recorded(monkeypatch):
    """Steps are 'recorded' as the function itself; counts how often one was replayed."""
    calls = []

    def record(work):
        def replay():
            calls.append(1)
            work()

        return replay

    monkeypatch.setattr(graphs, "record", record)
    monkeypatch.setattr("bbh.training.can_record", lambda *_: True)
    return calls


def loader(inputs, batch_size=5, classes=3):
    targets = torch.arange(len(inputs)) % classes
    return DataLoader(TensorDataset(inputs, targets), batch_size=batch_size)


def fit(posterior, data, graph, **settings):
    torch.manual_seed(1)
    history = bbh.fit(posterior, data, cuda_graph=graph, progress=False, **settings)
    return [(one.total, one.nll, one.gradient_norm) for one in history], posterior.state_dict()


@over_methods
@pytest.mark.parametrize("make", [mlp, BatchNormNet])
def test_the_same_training_with_and_without(method, make, recorded):
    inputs = torch.randn(20, 4) if make is mlp else torch.randn(20, 1, 6, 6)
    posterior = method(make(), bbh.likelihoods.Categorical())
    other = copy.deepcopy(posterior)
    settings = {
        "epochs": 3,
        "beta": bbh.Linear(0, 2),
        "gradient_clip": 0.5,
        "schedule_each_step": True,
        "scheduler": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
    }
    first, weights = fit(posterior, loader(inputs), False, **settings)
    second, others = fit(other, loader(inputs), True, **settings)
    # Three steps of warm-up, nine recorded.
    assert len(recorded) == 9
    # A fused Adam rounds differently when its rate is a tensor: single precision, twelve steps.
    torch.testing.assert_close(torch.tensor(first), torch.tensor(second), rtol=1e-4, atol=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(value, others[name], rtol=1e-3, atol=1e-5)


def test_a_short_last_batch_runs_by_itself(recorded):
    posterior = bbh.methods.maximum_a_posteriori(mlp(), bbh.likelihoods.Categorical())
    fit(posterior, loader(torch.randn(18, 4)), True, epochs=2)
    # Batches of 5, 5, 5, 3: the first three warm up, the short ones are too few to record.
    assert len(recorded) == 3


def test_a_failed_step_leaves_the_state_before_it(recorded):
    good, bad = torch.randn(40, 4), torch.full((10, 4), torch.nan)
    posterior = bbh.methods.bayes_by_backprop(BatchNormless(), bbh.likelihoods.Categorical())
    other = copy.deepcopy(posterior)
    fit(other, loader(good), False, epochs=1)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(bbh.DivergedError, match=r"step 9: the nll is nan") as caught:
        fit(posterior, loader(torch.cat([good, bad])), True, epochs=1)
    assert caught.value.term == "nll"
    for name, value in posterior.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=1e-3, atol=1e-5)


def test_statistics_of_a_failed_step_are_undone(recorded):
    good, bad = torch.randn(40, 1, 6, 6), torch.full((5, 1, 6, 6), torch.inf)
    posterior = bbh.methods.maximum_a_posteriori(BatchNormNet(), bbh.likelihoods.Categorical())
    with pytest.raises(bbh.DivergedError):
        fit(posterior, loader(torch.cat([good, bad])), True, epochs=1)
    assert all(value.isfinite().all() for value in posterior.statistics())


def test_resumes_without_graphs_what_was_written_with_them(recorded, tmp_path):
    inputs = torch.randn(20, 4)

    def train(name, graphs_in_first, **settings):
        torch.manual_seed(0)
        posterior = bbh.methods.bayes_by_hypernet(mlp(), bbh.likelihoods.Categorical())
        path = tmp_path / name
        fit(posterior, loader(inputs), graphs_in_first, epochs=2, checkpoint=path, **settings)
        torch.manual_seed(5)
        bbh.fit(
            posterior,
            loader(inputs),
            epochs=4,
            checkpoint=path,
            resume=True,
            cuda_graph=not graphs_in_first,
            progress=False,
            **settings,
        )
        return posterior.state_dict()

    first, second = train("a", True), train("b", False)
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-3, atol=1e-5)


def test_what_cannot_be_recorded_runs_as_usual(monkeypatch):
    def refuse(work):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "record", refuse)
    monkeypatch.setattr("bbh.training.can_record", lambda *_: True)
    posterior = bbh.methods.maximum_a_posteriori(mlp(), bbh.likelihoods.Categorical())
    other = copy.deepcopy(posterior)
    first, _ = fit(posterior, loader(torch.randn(20, 4)), True, epochs=3)
    assert len(first) == 3
    optimizers = []

    def make(parameters):
        optimizers.append(torch.optim.Adam(parameters, lr=1e-3, fused=True))
        return optimizers[0]

    fit(other, loader(torch.randn(20, 4)), True, epochs=3, optimizer=make)
    (group,) = optimizers[0].param_groups
    assert (group["lr"], group["capturable"]) == (1e-3, False)


class BatchNormless(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(4, 3))
