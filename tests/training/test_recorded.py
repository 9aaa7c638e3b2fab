"""Recorded steps: the same training as one kernel at a time. A plain call stands in for a graph."""

import copy
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.generators.factored.rmsprop import TensorFlowRMSprop, make_tensorflow_rmsprop
from bbh.training import recorded as graphs
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

    def on_the_device(step, batch, beta, verdict, execution=None):
        if not isinstance(verdict, graphs.DeviceVerdict):
            return run(step, batch, beta, verdict, execution)
        # A graph reads the rates it was recorded with: those on the device.
        groups = step.plain_optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, verdict.rates, strict=True):
            group["lr"] = rate.tensor
        terms = run(step, batch, beta, verdict, execution)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        return terms

    run = bbh.TrainingStep.run
    monkeypatch.setattr(bbh.TrainingStep, "run", on_the_device)
    monkeypatch.setattr(graphs, "record", record)
    monkeypatch.setattr(graphs, "can_record", lambda _: True)
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


@pytest.mark.parametrize("fails", [False, True])
def test_the_same_training_with_tensorflows_rmsprop(fails, recorded):
    """Output layers are factored; if a step fails, both end with the state before it."""
    inputs = torch.randn(40, 200)
    inputs[30:] = torch.nan if fails else inputs[30:]
    posterior = bbh.methods.bayes_by_hypernet(
        torch.nn.Linear(200, 60), bbh.likelihoods.Categorical()
    )
    results = []
    for one, graph in ((posterior, False), (copy.deepcopy(posterior), True)):
        optimizers = []

        def make(parameters, one=one, optimizers=optimizers):
            optimizers.append(make_tensorflow_rmsprop(one.weights, parameters, lr=1e-2))
            return optimizers[0]

        failing = pytest.raises(bbh.DivergedError, match="step 7: the nll is nan")
        with failing if fails else nullcontext():
            fit(one, loader(inputs), graph, epochs=1, gradient_clip=0.5, optimizer=make)
        (optimizer,) = optimizers
        assert optimizer.factored
        assert optimizer.found_inf is None
        assert optimizer.param_groups[0].keys() == {"params", "lr", "decay", "eps"}
        results.append((one.state_dict(), optimizer.state_dict()))
    assert len(recorded) == 5
    # The rate is in single precision where it is read on the device.
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "can"),
    [
        (partial(torch.optim.Adam, fused=True), True),
        (partial(bbh.training.FactoredAdam, factored=()), True),
        (TensorFlowRMSprop, True),
        (torch.optim.Adam, False),
        (torch.optim.SGD, False),
        (torch.optim.RMSprop, False),
    ],
)
def test_optimizers_that_can_be_recorded(make, can):
    assert graphs.can_record_optimizer(make([torch.nn.Parameter(torch.zeros(2))])) == can


def test_critics_take_their_steps_in_recorded_ones(recorded):
    critic = bbh.divergences.Adversarial(hidden=(8,), steps=3, pretraining=2)
    posterior = bbh.methods.bayes_by_backprop(
        mlp(), bbh.likelihoods.Categorical(), divergence=critic
    )
    other = copy.deepcopy(posterior)
    inputs = torch.randn(20, 4)
    first, weights = fit(posterior, loader(inputs), False, epochs=2)
    second, others = fit(other, loader(inputs), True, epochs=2)
    torch.testing.assert_close(torch.tensor(first), torch.tensor(second), rtol=1e-4, atol=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(value, others[name], rtol=1e-3, atol=1e-5)


def test_a_failed_critic_step_is_not_taken(recorded):
    calls = []

    def sampler(number):
        calls.append(number)
        # One call checks the shapes, then three steps of warm-up and two recorded ones go well.
        broken = torch.nan if len(calls) > 1 + 5 * 3 else 0.0
        return {
            name: torch.randn(number, *value.shape) + broken
            for name, value in network.named_parameters()
        }

    network = mlp()
    posterior = bbh.methods.bayes_by_backprop(
        network,
        bbh.likelihoods.Categorical(),
        bbh.priors.Sampled(sampler),
        divergence=bbh.divergences.Adversarial(hidden=(8,), steps=3, pretraining=0),
    )
    with pytest.raises(bbh.DivergedError, match="step 6: the auxiliary is nan"):
        fit(posterior, loader(torch.randn(40, 4)), True, epochs=1)
    assert all(value.isfinite().all() for value in posterior.state_dict().values())


def test_optimizers_keep_no_mark(recorded):
    optimizers = []

    def make(parameters):
        optimizers.append(torch.optim.Adam(parameters, fused=True))
        return optimizers[0]

    posterior = bbh.methods.maximum_a_posteriori(mlp(), bbh.likelihoods.Categorical())
    fit(posterior, loader(torch.randn(20, 4)), True, epochs=2, optimizer=make)
    assert recorded
    assert not hasattr(optimizers[0], "found_inf")


def test_terms_are_shown_every_so_many_steps(recorded):
    shown = []

    class Display(bbh.training.display.Display):
        def step(self, epoch, step, terms):
            shown.append(step)

    posterior = bbh.methods.maximum_a_posteriori(mlp(), bbh.likelihoods.Categorical())
    batches = [(torch.randn(5, 4), torch.arange(5) % 3)] * 110
    torch.manual_seed(1)
    bbh.fit(posterior, batches, epochs=1, num_data=550, progress=Display())
    # Three of warm-up, then every fiftieth.
    assert shown == [0, 1, 2, 52, 102]


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


def test_infinite_statistics_are_named_and_undone(recorded):
    inputs = torch.randn(45, 1, 6, 6)
    inputs[42, 0, 0, 0] = 1e20
    posterior = bbh.methods.maximum_a_posteriori(BatchNormNet(), bbh.likelihoods.Categorical())
    with pytest.raises(bbh.DivergedError, match="step 9: the batch_norm_statistics is"):
        fit(posterior, loader(inputs), True, epochs=1)
    assert all(value.isfinite().all() for value in posterior.statistics())


def test_a_failed_step_leaves_critic_optimizer_and_random_numbers_as_before(recorded):
    """Batches are given, so that only steps draw random numbers."""
    good = [(torch.randn(5, 4), torch.arange(5) % 3) for _ in range(6)]
    bad = (torch.full((5, 4), torch.nan), torch.arange(5) % 3)
    critic = bbh.divergences.Adversarial(hidden=(8,), steps=3, pretraining=0)
    first = bbh.methods.bayes_by_backprop(mlp(), bbh.likelihoods.Categorical(), divergence=critic)
    second = copy.deepcopy(first)
    optimizers = []

    def adam(parameters):
        optimizers.append(torch.optim.Adam(parameters, fused=True))
        return optimizers[-1]

    settings = {"epochs": 1, "num_data": 30, "optimizer": adam, "compare": False}
    fit(first, good, True, **settings)
    random = torch.get_rng_state()
    with pytest.raises(bbh.DivergedError, match="step 7: the nll is nan"):
        fit(second, [*good, bad, *good], True, **settings)
    assert len(recorded) == 3 + 3 + 7
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(v, second.state_dict()[n]) for n, v in first.state_dict().items())
    for one, other in zip(*(optimizer.state.values() for optimizer in optimizers), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_update_that_would_overflow_is_named_and_not_made(recorded):
    posterior = bbh.methods.maximum_a_posteriori(mlp(), bbh.likelihoods.Categorical())

    def rises(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1e35 if step == 6 else 1.0)

    settings = {"scheduler": rises, "schedule_each_step": True, "epochs": 1}
    with pytest.raises(bbh.DivergedError, match="step 7: the update is inf"):
        fit(posterior, loader(torch.randn(40, 4)), True, **settings)
    assert all(value.isfinite().all() for value in posterior.state_dict().values())


def test_resumes_without_graphs_what_was_written_with_them(recorded, tmp_path):
    inputs = torch.randn(20, 4, dtype=torch.float64)

    def train(name, graphs_in_first, **settings):
        torch.manual_seed(0)
        posterior = bbh.methods.bayes_by_hypernet(mlp().double(), bbh.likelihoods.Categorical())
        path = tmp_path / name
        fit(posterior, loader(inputs), graphs_in_first, epochs=2, checkpoint=path, **settings)
        torch.manual_seed(5)
        bbh.fit(
            posterior,
            loader(inputs),
            epochs=4,
            checkpoint=bbh.Checkpoint(path, resume=True),
            cuda_graph=not graphs_in_first,
            progress=False,
            **settings,
        )
        return posterior.state_dict()

    first, second = train("a", True), train("b", False)
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-7, atol=1e-8)


def test_what_cannot_be_recorded_runs_as_usual(monkeypatch):
    def refuse(work):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "record", refuse)
    monkeypatch.setattr(graphs, "can_record", lambda _: True)
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


def test_a_step_by_itself_does_not_follow_one_that_failed(recorded):
    inputs = torch.randn(38, 1, 6, 6)
    inputs[25:30] = torch.nan
    posterior = bbh.methods.maximum_a_posteriori(BatchNormNet(), bbh.likelihoods.Categorical())
    # Three batches warm up, four are recorded of which the third fails; the short last one is not.
    with pytest.raises(bbh.DivergedError, match="step 6: the nll is nan"):
        fit(posterior, loader(inputs), True, epochs=1)
    assert len(recorded) == 4
    # Five batches went well, and only they may have left a trace.
    (seen,) = [value for value in posterior.statistics() if not value.is_floating_point()]
    assert seen == 5


def test_a_loader_that_runs_dry_is_empty(recorded):
    posterior = bbh.methods.maximum_a_posteriori(mlp(), bbh.likelihoods.Categorical())
    batches = iter([(torch.randn(5, 4), torch.arange(5) % 3)] * 6)
    with pytest.raises(ValueError, match="the training loader is empty in epoch 2"):
        fit(posterior, batches, True, epochs=2, num_data=30)


def one_cycle(optimizer):  # moves Adam's first beta along with its rate
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=13)


class MovingDecay(torch.optim.lr_scheduler.LRScheduler):
    def get_lr(self):
        for group in self.optimizer.param_groups:
            group["decay"] *= 0.9
        return [group["lr"] for group in self.optimizer.param_groups]


@pytest.mark.parametrize(
    ("scheduler", "optimizer"), [(one_cycle, None), (MovingDecay, TensorFlowRMSprop)]
)
def test_settings_that_change_every_step_are_not_recorded(scheduler, optimizer, recorded):
    posterior = bbh.methods.maximum_a_posteriori(mlp(), bbh.likelihoods.Categorical())
    other = copy.deepcopy(posterior)
    inputs = torch.randn(20, 4)
    settings = {
        "epochs": 3,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "schedule_each_step": True,
    }
    _, weights = fit(posterior, loader(inputs), False, **settings)
    _, others = fit(other, loader(inputs), True, **settings)
    # The fourth step is recorded; the fifth has other numbers.
    assert len(recorded) == 1
    for name, value in weights.items():
        torch.testing.assert_close(value, others[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", [dict, tuple])
def test_inputs_of_several_tensors_are_recorded(kind, recorded):
    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, first, second):
            return self.linear(first - second)

    parts, targets = torch.randn(6, 2, 5, 4), torch.arange(5) % 3
    batches = [
        {"first": first, "second": second, "labels": targets, "weights": torch.arange(5.0)}
        if kind is dict
        else ((first, second), targets)
        for first, second in parts
    ]
    posterior = bbh.methods.maximum_a_posteriori(Sum(), bbh.likelihoods.Categorical())
    other = copy.deepcopy(posterior)
    first, _ = fit(posterior, batches, False, epochs=1, num_data=30)
    second, _ = fit(other, batches, True, epochs=1, num_data=30)
    assert len(recorded) == 3
    torch.testing.assert_close(torch.tensor(first), torch.tensor(second), rtol=1e-4, atol=1e-5)


class BatchNormless(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(4, 3))
