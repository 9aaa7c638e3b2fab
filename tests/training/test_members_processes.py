"""Two processes that train members of their own, and that predict together."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from scenarios import METHODS, BatchNormNet, mlp
from training.small import assert_same_state, copied, dataset
from training.together import together

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="needs torch.distributed"
)
Categorical = bbh.likelihoods.Categorical
POINT = bbh.methods.maximum_a_posteriori
MEMBERS = {
    "ensemble": lambda: bbh.methods.deep_ensemble(mlp(), Categorical(), num_members=3),
    "batch norm": lambda: bbh.methods.deep_ensemble(BatchNormNet(), Categorical(), num_members=3),
    "mixture": lambda: bbh.methods.mixture(mlp(), Categorical(), method=POINT, num_members=3),
    "mixture with batch norm": lambda: bbh.methods.mixture(
        BatchNormNet(), Categorical(), method=POINT, num_members=2
    ),
    "learned noise": lambda: bbh.methods.deep_ensemble(
        nn.Linear(4, 1), bbh.likelihoods.Gaussian(), num_members=3
    ),
}


def data_of(kind):
    torch.manual_seed(4)
    if "norm" in kind:
        return TensorDataset(torch.randn(12, 1, 5, 5), torch.arange(12) % 3)
    inputs, targets = dataset().tensors
    return TensorDataset(inputs, 3 * targets[:, None].float() if "noise" in kind else targets)


def train_members(fabric, kinds):
    """Trains each kind for some epochs, with members dealt out if there are several processes."""
    states = {}
    for kind in kinds:
        torch.manual_seed(0)
        posterior = MEMBERS[kind]()
        loader = DataLoader(
            data_of(kind), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3)
        )
        options = {"epochs": 4, "learning_rate": 0.01, "progress": False, "compare": False}
        if fabric is None:
            bbh.fit(posterior, loader, **options)
        else:
            history = bbh.fit_members(posterior, loader, fabric=fabric, **options)
            assert len(history) == 4
        states[kind] = copied(posterior)
    return states


def test_members_that_are_dealt_out_are_those_of_one_process():
    first, second = together(train_members, list(MEMBERS))
    alone = train_members(None, list(MEMBERS))
    for kind, state in alone.items():
        assert_same_state(first[kind], second[kind])
        for name, value in state.items():
            # Adam divides by the root of squared gradients plus 1e-8, which is not quite the same
            # for gradients of another scale.
            torch.testing.assert_close(first[kind][name], value, rtol=2e-4, atol=2e-5)


def train_hypernets(fabric):
    """Members draw noise of their own, and both processes have all members in the end."""
    torch.manual_seed(0)
    posterior = METHODS["mixture"](mlp(), Categorical(), num_members=3)
    before = copied(posterior)
    loader = DataLoader(dataset(), batch_size=4, shuffle=True)
    bbh.fit_members(posterior, loader, fabric=fabric, epochs=2, progress=False)
    assert posterior.weights.num_members == 3
    assert not posterior.training
    return before, copied(posterior)


def test_all_processes_have_all_members():
    (before, first), (_, second) = together(train_hypernets)
    assert_same_state(first, second)
    changed = {name for name, value in before.items() if not torch.equal(first[name], value)}
    for member in range(3):
        assert any(name.startswith(f"weights.members.{member}.") for name in changed)


def refuse(fabric, folder):
    loader = DataLoader(dataset(), batch_size=4)
    few = POINT(mlp(), Categorical())
    with pytest.raises(ValueError, match=r"2 processes, and the posterior has 1 member"):
        bbh.fit_members(few, loader, fabric=fabric, epochs=1)
    together_trained = bbh.methods.deep_ensemble(mlp(), Categorical(), bayesian="2")
    with pytest.raises(ValueError, match="1 member"):  # all share the first layer
        bbh.fit_members(together_trained, loader, fabric=fabric, epochs=1)
    posterior = MEMBERS["ensemble"]()
    with pytest.raises(ValueError, match="patience="):
        bbh.fit_members(
            posterior,
            loader,
            fabric=fabric,
            epochs=1,
            validation=bbh.Validation(loader, patience=1),
        )
    path = folder / "checkpoint"
    options = {"fabric": fabric, "checkpoint": path, "progress": False, "compare": False}
    bbh.fit_members(posterior, loader, epochs=1, **options)
    state = copied(posterior)
    with pytest.raises((FileExistsError, RuntimeError), match=r"exists\. Pass"):
        bbh.fit_members(posterior, loader, epochs=1, **options)
    assert_same_state(copied(posterior), state)


def test_what_cannot_be_dealt_out_is_refused(tmp_path):
    together(refuse, tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {"checkpoint-0", "checkpoint-1"}


def diverge(fabric):
    posterior = MEMBERS["ensemble"]()
    data = dataset()
    if fabric.global_rank == 1:
        data.tensors[0][3] = float("nan")
    with pytest.raises((bbh.DivergedError, RuntimeError)) as caught:
        bbh.fit_members(
            posterior, DataLoader(data, 4), fabric=fabric, epochs=1, progress=False, compare=False
        )
    return str(caught.value)


def test_members_that_diverge_stop_all_processes():
    first, second = together(diverge)
    assert "process 1 of 2 failed: training stopped at step 1" in first
    assert "training stopped at step 1" in second


def resume_members(fabric, folder):
    """Trains a while, twice as long without a stop, and from checkpoints of different epochs."""

    def train(epochs, name):
        torch.manual_seed(0)
        posterior = MEMBERS["learned noise"]()
        loader = DataLoader(data_of("learned noise"), batch_size=4, shuffle=True)
        checkpoint = bbh.Checkpoint(folder / name, resume=True)
        settings = {"epochs": epochs, "progress": False, "compare": False}
        bbh.fit_members(posterior, loader, fabric=fabric, checkpoint=checkpoint, **settings)
        return copied(posterior)

    train(1, "run")
    own = folder / f"run-{fabric.global_rank}"
    first = own.read_bytes()
    resumed = train(2, "run")
    if fabric.global_rank == 1:
        own.write_bytes(first)
    fabric.barrier()
    with pytest.raises(bbh.training.CheckpointError, match=r"of different steps \(6, 3\)"):
        train(3, "run")
    own.write_bytes(first[:-1])
    fabric.barrier()
    with pytest.raises(bbh.training.CheckpointError, match="truncated or damaged"):
        train(3, "run")
    return train(2, "whole"), resumed


def test_members_go_on_bit_for_bit_and_only_from_the_same_epoch(tmp_path):
    for whole, resumed in together(resume_members, tmp_path):
        assert_same_state(whole, resumed)


def posteriors():
    """Every method, a regression, and a mixture with batch norm."""
    torch.manual_seed(0)
    made = {name: method(mlp(), Categorical()) for name, method in METHODS.items()}
    made["regression"] = METHODS["bayes_by_backprop"](mlp(), bbh.likelihoods.Gaussian(scale=0.3))
    return made


def predict_all(fabric):
    inputs, targets = dataset().tensors
    found = {}
    for name, posterior in posteriors().items():
        torch.manual_seed(7 + (fabric.global_rank if fabric else 0))
        rows = bbh.predict(posterior, inputs[:7], 5, fabric=fabric)
        batches = bbh.predict(posterior, DataLoader(inputs, 5), 5, fabric=fabric)
        labels = (
            targets
            if name != "regression"
            else torch.randn(len(targets), 3, generator=torch.Generator().manual_seed(1))
        )
        loader = DataLoader(TensorDataset(inputs, labels), 5, shuffle=True)
        metrics = bbh.evaluate(posterior, loader, 5, fabric=fabric)
        single = bbh.predict(posterior, inputs[:1], 5, fabric=fabric)
        found[name] = rows.mean, batches.mean, single.mean, metrics, torch.rand(3)
    return found


def test_processes_that_predict_together_predict_what_one_predicts():
    """The same rows in the same order, from the draws that the first process would make alone."""
    first, second = together(predict_all)
    alone = predict_all(None)
    for name, (*means, metrics, numbers) in alone.items():
        for own, one, other in zip(means, first[name], second[name], strict=False):
            torch.testing.assert_close(one, own)
            assert torch.equal(one, other)
        assert first[name][3] == second[name][3] == pytest.approx(metrics, rel=1e-5)
        # The first process goes on as if it were alone, the second with numbers of its own.
        assert torch.equal(first[name][4], numbers)
        assert not torch.equal(second[name][4], numbers)


def fail_alone(fabric):
    posterior = POINT(mlp(), Categorical())
    inputs = torch.randn(6, 4)
    if fabric.global_rank == 1:
        inputs = inputs[:, :2]
    with pytest.raises(RuntimeError) as caught:
        bbh.predict(posterior, inputs, fabric=fabric)
    batches = DataLoader(torch.randn(4 + 2 * fabric.global_rank, 4), 2)
    with pytest.raises(ValueError, match=r"different numbers of batches: \[2, 3\]"):
        bbh.predict(posterior, batches, fabric=fabric)
    with pytest.raises(ValueError, match="nothing to predict"):
        bbh.predict(posterior, torch.randn(0, 4), fabric=fabric)
    return str(caught.value)


def test_a_prediction_that_fails_in_one_process_fails_in_all():
    first, second = together(fail_alone)
    assert first.startswith("process 1 of 2 failed: ")
    assert "shapes" in second
