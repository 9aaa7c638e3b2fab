"""``fit`` keeps training inputs for batch norm, and training is the same with and without."""

import logging

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.likelihoods import Categorical
from scenarios import BatchNormNet, mlp


def make() -> bbh.Posterior:
    return bbh.methods.bayes_by_backprop(BatchNormNet(), Categorical(), initial_scale=0.2)


def data(number=60, batch_size=10) -> DataLoader:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(number, 1, 6, 6, generator=generator)
    targets = torch.arange(number) % 3
    return DataLoader(TensorDataset(inputs, targets), batch_size=batch_size, shuffle=True)


def fit(posterior, loader, **settings):
    return bbh.fit(posterior, loader, progress=False, **{"epochs": 2, **settings})


def rows(inputs: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(row.flatten().tolist()) for row in inputs}


def test_small_data_are_kept_whole():
    posterior, loader = make(), data()
    fit(posterior, loader)
    (kept,) = posterior.reference.batches()
    assert len(kept) == 60
    assert rows(kept) == rows(loader.dataset.tensors[0])


def test_large_data_are_sampled_from_all_over_an_epoch_that_is_not_shuffled():
    inputs = torch.arange(4000.0).view(-1, 1, 1, 1).expand(-1, 1, 6, 6) / 4000
    batches = [(part, torch.arange(len(part)) % 3) for part in inputs.split(100)]
    posterior = make()
    fit(posterior, batches, num_data=4000, batch_norm_examples=320, epochs=1)
    (kept,) = posterior.reference.batches()
    values = kept[:, 0, 0, 0]
    assert len(kept) == 300  # twelve quarters of batches
    assert len(values.unique()) == len(kept)
    # A quarter of the data has at least a tenth of the examples: a prefix would have none of most.
    assert (torch.histc(values, 4, 0, 1) >= len(kept) / 10).all()


def test_large_examples_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr("bbh.training.reference._BYTES", 10 * 36 * 4)
    posterior = make()
    fit(posterior, data())
    (kept,) = posterior.reference.batches()
    assert len(kept) == 10


def test_training_is_the_same_with_and_without():
    states = []
    for examples in (512, 0):
        torch.manual_seed(4)
        posterior = make()
        history = fit(posterior, data(), batch_norm_examples=examples)
        states.append((history[-1].total, torch.rand(1), dict(posterior.named_parameters())))
    assert states[0][:2] == states[1][:2]
    for name, value in states[0][2].items():
        assert torch.equal(value, states[1][2][name])


def test_validation_uses_the_statistics_of_each_draw():
    posterior, loader = make(), data()
    torch.manual_seed(0)
    history = fit(posterior, loader, epochs=3, learning_rate=0.05, validation=loader)
    after = bbh.evaluate(posterior, loader, 10)
    assert history[-1].validation["nll"] == pytest.approx(after["nll"], rel=0.15)


def test_switched_off_it_warns_and_leaves_what_there_is(caplog):
    posterior = make()
    mine = torch.randn(8, 1, 6, 6)
    posterior.keep_reference(mine)
    fit(posterior, data(), batch_norm_examples=0)
    (kept,) = posterior.reference.batches()
    assert torch.equal(kept, mine)
    posterior.keep_reference(None)
    with caplog.at_level(logging.WARNING, logger="bbh"):
        bbh.predict(posterior, mine, 2)
    assert "no reference inputs for batch norm" in caplog.text


@pytest.mark.parametrize("number", [-1, 1])
def test_numbers_that_cannot_be(number):
    with pytest.raises(ValueError, match=f"batch_norm_examples={number}"):
        fit(make(), data(), batch_norm_examples=number)


def test_nothing_is_kept_without_need():
    for posterior, loader in (
        (bbh.methods.maximum_a_posteriori(BatchNormNet(), Categorical()), data()),
        (
            bbh.methods.bayes_by_backprop(mlp(), Categorical()),
            DataLoader(TensorDataset(torch.randn(12, 4), torch.arange(12) % 3), batch_size=4),
        ),
    ):
        fit(posterior, loader)
        assert not posterior.reference


def test_another_fit_keeps_its_own_inputs():
    posterior = make()
    fit(posterior, data())
    other = torch.randn(20, 1, 6, 6)
    fit(posterior, [(other, torch.arange(20) % 3)], num_data=20)
    (kept,) = posterior.reference.batches()
    assert torch.equal(kept, other)


def test_a_resumed_run_is_that_which_was_not_interrupted(tmp_path):
    path = tmp_path / "checkpoint"

    def train(epochs, **settings):
        torch.manual_seed(0)
        posterior = make()
        settings |= {"validation": data(10), "batch_norm_examples": 25}
        fit(posterior, data(), epochs=epochs, **settings)
        return posterior.state_dict()

    train(1, checkpoint=path)
    resumed = train(3, checkpoint=bbh.Checkpoint(path, resume=True))
    straight = train(3)
    assert resumed.keys() == straight.keys()
    assert any(name.startswith("reference.") for name in straight)
    for name, value in straight.items():
        assert torch.equal(value, resumed[name]), name


def test_the_best_epoch_has_the_reference_too():
    posterior, loader = make(), data()
    validation = bbh.Validation(loader, patience=2)
    fit(posterior, loader, epochs=6, learning_rate=0.2, validation=validation)
    (kept,) = posterior.reference.batches()
    assert len(kept) == 60


def test_inputs_of_different_lengths_stay_apart():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(1, 4, 2)
            self.norm = nn.BatchNorm1d(4)
            self.head = nn.Linear(4, 3)

        def forward(self, signal):
            return self.head(self.norm(self.conv(signal)).mean(-1))

    posterior = bbh.methods.bayes_by_backprop(Pooled(), Categorical(), initial_scale=0.2)
    batches = [(torch.randn(6, 1, 5 + k % 2), torch.arange(6) % 3) for k in range(4)]
    fit(posterior, batches, num_data=24)
    shapes = sorted(tuple(kept.shape) for kept in posterior.reference.batches())
    assert shapes == [(12, 1, 5), (12, 1, 6)]
    samples = posterior.eval().sample(1)
    hidden = [
        nn.functional.conv1d(kept, samples["conv.weight"][0], samples["conv.bias"][0])
        for kept in posterior.reference.batches()
    ]
    mean = sum(part.mean((0, 2)) for part in hidden) / 2
    torch.testing.assert_close(samples["norm.running_mean"][0], mean.detach())


def test_packed_sequences_are_kept_whole():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 3)
            self.norm = nn.BatchNorm1d(3)

        def forward(self, packed: PackedSequence):
            return self.norm(self.linear(packed.data))[: packed.batch_sizes[0]]

    posterior = bbh.methods.bayes_by_backprop(Packed(), Categorical())
    batches = [
        (pack_sequence([torch.randn(4, 2), torch.randn(3, 2)]), torch.tensor([0, 1]))
        for _ in range(3)
    ]
    fit(posterior, batches, num_data=6)
    assert [len(kept.data) for kept in posterior.reference.batches()] == [7, 7, 7]
    assert bbh.predict(posterior, iter(batches), 2).mean.isfinite().all()


def test_inputs_that_cannot_be_kept_are_no_error(caplog):
    class Wrapped:
        def __init__(self):
            self.inputs = torch.randn(5, 1, 6, 6)

    posterior = bbh.methods.bayes_by_backprop(
        BatchNormNet(), Categorical(), forward=lambda network, wrapped: network(wrapped.inputs)
    )
    with caplog.at_level(logging.WARNING, logger="bbh"):
        fit(posterior, [(Wrapped(), torch.arange(5) % 3)], num_data=5)
    assert "cannot hold a Wrapped" in caplog.text
