"""fit in two processes: what each draws, what they share, and how they stop and go on."""

import copy
import logging
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import bbh
from bbh.files import WriteError
from bbh.training.checkpoints import CheckpointError, read
from bbh.training.random_numbers import seed_all
from scenarios import METHODS, BatchNormNet, mlp
from training.small import (
    NUM_DATA,
    assert_same_state,
    copied,
    dataset,
    fit,
    hypernet,
    point,
    sgd,
    without_seconds,
)
from training.together import ended, together

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="needs torch.distributed"
)


def two_trainings(fabric, folder):
    """Training without random numbers, and the schedules that a method chooses itself."""
    torch.manual_seed(0)
    network = mlp()
    loader = DataLoader(dataset(), batch_size=6 // fabric.world_size)
    posterior, bayesian = point(network), hypernet(network)
    history = fit(
        posterior,
        loader,
        3,
        optimizer=sgd(0.3),
        validation=DataLoader(dataset(), batch_size=12),
        fabric=fabric,
        log_dir=folder / str(fabric.world_size),
    )
    scheduled = fit(bayesian, loader, 6, fabric=fabric)
    return posterior.state_dict(), history.to_dicts(), scheduled.to_dicts()


def test_two_processes_train_like_one(tmp_path):
    """Two processes with half a batch each take the very steps of one with whole batches."""
    first, second = together(two_trainings, tmp_path)
    alone = two_trainings(Fabric(accelerator="cpu", devices=1), tmp_path)
    assert_same_state(first[0], second[0])
    assert first[1:] == second[1:]
    for name, value in alone[0].items():
        torch.testing.assert_close(first[0][name], value)
    for own, record in zip(first[1], alone[1], strict=True):
        validation = own.pop("validation"), record.pop("validation")
        assert validation[0] == pytest.approx(validation[1], rel=1e-4)
        assert own.pop("seconds") > 0 < record.pop("seconds")
        assert own == pytest.approx(record, rel=1e-4)
    for own, record in zip(first[2], alone[2], strict=True):
        for name in ("step", "beta", "learning_rate"):
            assert own[name] == pytest.approx(record[name])
    assert len(list((tmp_path / "2").iterdir())) == 1  # only one process writes


class Noisy(TensorDataset):
    """Examples with noise of torch and NumPy; it remembers which examples were asked for."""

    def __init__(self):
        super().__init__(*dataset().tensors)
        self.asked = []

    def __getitem__(self, index):
        self.asked.append(index)
        inputs, target = super().__getitem__(index)
        return inputs + 0.3 * torch.randn(4) + float(np.random.normal()), target  # noqa: NPY002


def regression():
    return point(nn.Linear(4, 1), bbh.likelihoods.Gaussian())


class Floats(Noisy):
    """The same with numbers to predict, which ``fit`` looks at before it trains."""

    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        return inputs, 5 + target[None].float()


def train(fabric, kind, epochs, path=None, *, seed=5, resume=False):
    """Trains with random numbers of all kinds, and says what came of it."""
    torch.manual_seed(1)
    posterior = hypernet() if kind == "hypernet" else regression()
    seed_all(seed)
    data = Floats() if kind == "regression" else Noisy()
    sampler = SubsetRandomSampler(range(NUM_DATA)) if kind == "hypernet" else None
    history = fit(
        posterior,
        DataLoader(data, batch_size=2, shuffle=sampler is None, sampler=sampler),
        epochs,
        beta=1.0,  # by default this and the next depend on how many epochs there are in all
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        fabric=fabric,
        checkpoint=path,
        resume=resume,
    )
    state = posterior.state_dict()
    numbers = torch.rand(1).item(), np.random.rand()  # noqa: NPY002
    return {"state": state, "history": without_seconds(history), "numbers": numbers}


def interrupt_twice(fabric, kind, path):
    whole = train(fabric, kind, 4)
    train(fabric, kind, 1, path)
    train(fabric, kind, 2, path, seed=77, resume=True)
    return whole, train(fabric, kind, 4, path, seed=99, resume=True)


@pytest.mark.parametrize("kind", ["hypernet", "regression"])
def test_resumed_run_is_bit_for_bit_the_uninterrupted_one(tmp_path, kind):
    found = together(interrupt_twice, kind, tmp_path / "checkpoint")
    for whole, resumed in found:
        assert_same_state(whole["state"], resumed["state"])
        assert whole["history"] == resumed["history"]
        assert whole["numbers"] == resumed["numbers"]
    first, second = (resumed for _, resumed in found)
    assert_same_state(first["state"], second["state"])
    assert first["history"] == second["history"]
    assert not set(first["numbers"]) & set(second["numbers"])
    with pytest.raises(CheckpointError, match=r"processes=2, not 1\. Go on with what"):
        train(None, kind, 4, tmp_path / "checkpoint", resume=True)


def only_one_sees(fabric, path):
    own = path / f"of-{fabric.global_rank}"
    if fabric.global_rank == 1:
        own.write_text("a file")
    with pytest.raises(CheckpointError, match="1 of 2 processes") as caught:
        train(fabric, "regression", 1, own, resume=True)
    return str(caught.value)


def test_a_checkpoint_that_only_one_process_sees(tmp_path):
    assert all("folder that all processes" in text for text in together(only_one_sees, tmp_path))


def cannot_write(fabric, path):
    with pytest.raises(WriteError) as caught:
        train(fabric, "regression", 1, path)
    return str(caught.value)


def test_all_stop_if_the_checkpoint_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    first, second = together(cannot_write, tmp_path / "file" / "checkpoint")
    assert first == second
    assert "cannot be written" in first


def draws(fabric, seeds):
    """The weights that the first step draws, and what was said."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("bbh").addHandler(handler)
    logging.getLogger("bbh").setLevel(logging.INFO)
    torch.manual_seed(1)
    posterior = bbh.methods.bayes_by_backprop(nn.Linear(4, 3), bbh.likelihoods.Categorical())
    torch.manual_seed(seeds[fabric.global_rank if fabric else 0])
    drawn = []
    sample = posterior.weights.sample

    def watched(number):
        samples = sample(number)
        drawn.append({name: value.detach() for name, value in samples.items()})
        return samples

    posterior.weights.sample = watched
    fit(posterior, DataLoader(dataset(), 3), num_samples=3, fabric=fabric, compare=False)
    return drawn[0], [text for text in said if "seeded" in text]


def test_processes_that_were_seeded_alike_draw_differently():
    (first, said), (second, silent) = together(draws, [5, 5])
    assert not any(torch.equal(first[name], second[name]) for name in first)
    assert_same_state(first, draws(None, [5])[0])  # the first process goes on as if it were alone
    assert "each of the 2 draws weights of its own" in said[0]
    assert silent == []
    again = together(draws, [5, 5])
    assert_same_state(again[1][0], second)
    assert not torch.equal(together(draws, [6, 6])[1][0]["weight"], second["weight"])


def test_processes_that_were_seeded_differently_are_left_alone():
    found = together(draws, [5, 6])
    for (drawn, said), seed in zip(found, [5, 6], strict=True):
        assert_same_state(drawn, draws(None, [seed])[0])
        assert said == []


def shares(fabric):
    data = Noisy()
    sampler = SubsetRandomSampler(range(NUM_DATA))
    torch.manual_seed(0)
    fit(
        point(),
        DataLoader(data, batch_size=2, sampler=sampler),
        2,
        num_data=NUM_DATA,
        fabric=fabric,
    )
    assert sampler.generator is None
    return data.asked


def test_every_example_is_in_one_share():
    """Also if a sampler shuffles by the global generator, which differs between processes."""
    first, second = together(shares)
    half = NUM_DATA // 2
    for epoch in (slice(half), slice(half, None)):
        assert sorted(first[epoch] + second[epoch]) == list(range(NUM_DATA))
    assert first[:half] != first[half:]


MOMENTUM = 0.1


def normalised(fabric):
    network = nn.Sequential(nn.BatchNorm1d(4, momentum=MOMENTUM), nn.Linear(4, 3))
    posterior = point(network)
    fit(posterior, DataLoader(dataset(), batch_size=3), 2, fabric=fabric)
    return posterior.constants["0.running_mean"], posterior.constants["0.running_var"]


def test_running_statistics_are_means_over_processes():
    first, second = together(normalised)
    mean, variance = torch.zeros(4), torch.ones(4)
    inputs, _ = dataset().tensors
    for batch in [inputs[:6], inputs[6:]] * 2:
        # Process r has the examples r, r + 2, r + 4, ...
        parts = [batch[rank::2] for rank in (0, 1)]
        mean = (1 - MOMENTUM) * mean + MOMENTUM * sum(part.mean(0) for part in parts) / 2
        variance = (1 - MOMENTUM) * variance + MOMENTUM * sum(part.var(0) for part in parts) / 2
    for found, other, expected in zip(first, second, (mean, variance), strict=True):
        torch.testing.assert_close(found, expected)
        assert torch.equal(found, other)


class Counting(nn.Module):
    """Writes to a buffer of its own what its process sees."""

    def __init__(self):
        super().__init__()
        self.inner = BatchNormNet()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, images):
        self.seen += images.sum()
        return self.inner(images)


def train_all(fabric):
    """Every method on a network with batch norm."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8, 1, 5, 5), torch.arange(8) % 3)
    states = {}
    for name, method in METHODS.items():
        network = BatchNormNet() if name == "deep_ensemble" else Counting()
        posterior = method(network, bbh.likelihoods.Categorical())
        fit(posterior, DataLoader(data, batch_size=2), 2, fabric=fabric, compare=False)
        states[name] = copied(posterior)
    return states


def test_processes_share_weights_and_buffers_of_every_method():
    first, second = together(train_all)
    assert first.keys() == METHODS.keys()
    for name, state in first.items():
        assert_same_state(state, second[name])


POINTS = {
    "maximum_a_posteriori": {},
    "deep_ensemble": {"num_members": 2},
    "stochastic_weight_averaging": {},
    "mixture": {"method": bbh.methods.maximum_a_posteriori, "num_members": 2},
}


def train_points(fabric):
    """Methods that train without random numbers, and a frozen network that differs at first."""
    states = {}
    for name, options in POINTS.items():
        torch.manual_seed(0)
        posterior = bbh.methods.registered()[name](mlp(), bbh.likelihoods.Categorical(), **options)
        loader = DataLoader(dataset(), batch_size=6 // fabric.world_size)
        fit(posterior, loader, 2, optimizer=sgd(0.3), fabric=fabric, compare=False)
        states[name] = copied(posterior)
    torch.manual_seed(fabric.global_rank)
    network = mlp()
    before = copy.deepcopy(network.state_dict())
    frozen = point(network, bayesian="2", freeze_rest=True)
    fit(frozen, loader, 2, optimizer=sgd(0.3), fabric=fabric, compare=False)
    assert_same_state(network.state_dict(), before)
    return states | {"frozen": copied(frozen) | frozen.frozen()}


def test_what_one_process_gives_two_give():
    first, second = together(train_points)
    alone = train_points(Fabric(accelerator="cpu", devices=1))
    for name, state in alone.items():
        assert_same_state(first[name], second[name])
        for key, value in state.items():
            torch.testing.assert_close(first[name][key], value)


BAYESIAN = ["bayes_by_backprop", "multiplicative_normalizing_flows", "bayes_by_hypernet", "mixture"]


def train_linear(fabric):
    """Predictions of methods that draw weights, where the exact posterior is known."""
    inputs = torch.linspace(-1, 1, 20)[:, None]
    data = TensorDataset(inputs, 2 * inputs + 0.5 * torch.sin(40 * inputs))
    found = {}
    for name in BAYESIAN:
        torch.manual_seed(0)
        posterior = METHODS[name](
            nn.Linear(1, 1, bias=False),
            bbh.likelihoods.Gaussian(scale=0.5),
            bbh.priors.Normal(1.0),
        )
        loader = DataLoader(data, batch_size=20 // fabric.world_size)
        options = {"learning_rate": 0.05, "average_epochs": 50, "beta": 1.0, "compare": False}
        fit(posterior, loader, 150, fabric=fabric, **options)
        torch.manual_seed(1)
        weight = posterior.weights.sample(2000)["weight"].detach()
        found[name] = float(weight.mean()), float(weight.std())
    return found


@pytest.mark.slow
def test_two_processes_find_the_posterior_that_one_finds():
    """The exact posterior of one weight: N(mean, scale²), whatever the number of processes."""
    inputs = torch.linspace(-1, 1, 20)
    precision = 1 + float((inputs**2).sum()) / 0.25
    mean = float((inputs * (2 * inputs + 0.5 * torch.sin(40 * inputs))).sum()) / 0.25 / precision
    alone = train_linear(Fabric(accelerator="cpu", devices=1))
    for found in (*together(train_linear), alone):
        for name, (own_mean, own_scale) in found.items():
            assert own_mean == pytest.approx(mean, abs=0.1), name
            # Short training: a wrong scale of the complexity would be off by much more.
            assert 0.5 < own_scale * precision**0.5 < 2, name


def diverge(fabric, value, spoilt):
    """The second of three batches of the second process is spoilt."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    posterior = bbh.methods.bayes_by_backprop(network, bbh.likelihoods.Categorical())
    inputs, targets = dataset().tensors
    batches = [(inputs[i : i + 4].clone(), targets[i : i + 4]) for i in range(0, NUM_DATA, 4)]
    options = {"num_data": NUM_DATA, "fabric": fabric, "batch_norm_examples": 0, "compare": False}
    if not spoilt:
        fit(posterior, batches[:1], **options)
        return copied(posterior), torch.rand(3)
    if fabric.global_rank == 1:
        batches[1][0][0, 0] = value
    with pytest.raises(bbh.DivergedError) as caught:
        fit(posterior, batches, **options)
    return copied(posterior), torch.rand(3), str(caught.value)


@pytest.mark.parametrize(
    ("value", "term"), [(float("nan"), "nll"), (1e20, "batch_norm_statistics")]
)
def test_divergence_in_one_process_stops_all_and_undoes_the_step_everywhere(value, term):
    found = together(diverge, value, True)
    for (state, numbers, text), before in zip(found, together(diverge, 0, False), strict=True):
        assert f"stopped at step 2: the {term} is" in text
        assert_same_state(state, before[0])
        assert torch.equal(numbers, before[1])


class Signalling:
    """Sends a signal to its process in the second batch of the second epoch."""

    def __init__(self, number):
        self.number = number
        self.epochs = 0

    def __len__(self):
        return 3

    def __iter__(self):
        self.epochs += 1
        for index, batch in enumerate(DataLoader(dataset(), batch_size=4)):
            if self.epochs == 2 and index == 1 and self.number:
                os.kill(os.getpid(), self.number)
            yield batch


def signalled(fabric, path, number, resume):
    torch.manual_seed(1)
    posterior = hypernet()
    loader = Signalling(number if fabric.global_rank == 1 else None)
    options = {"checkpoint": path, "resume": resume, "seconds": 3600.0}
    fit(posterior, loader, 4, num_data=NUM_DATA, fabric=fabric, **options)
    return copied(posterior)


def test_a_signal_to_one_process_stops_all_after_the_epoch(tmp_path):
    path = tmp_path / "checkpoint"
    codes = [one.code for one in ended(signalled, path, signal.SIGTERM, False)]
    assert codes == [-signal.SIGTERM] * 2
    assert len(read(path)["records"]) == 2
    resumed = together(signalled, path, None, True)
    whole = together(signalled, tmp_path / "other", None, False)
    for first, second in zip(resumed, whole, strict=True):
        assert_same_state(first, second)


TORCHRUN = """
import sys
from pathlib import Path
import torch
from lightning_fabric import Fabric
from training.test_fit_processes import train
fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
train(fabric, "hypernet", int(sys.argv[2]), Path(sys.argv[1]), resume=True)
# Otherwise threads of gloo may still run when the process ends, which then aborts now and then.
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_sigterm_to_torchrun(tmp_path):
    """A long run is asked to stop, and its checkpoint is that of a short run."""
    script = tmp_path / "script.py"
    script.write_text(TORCHRUN)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    paths = tmp_path / "long", tmp_path / "short"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*launcher, str(script), str(paths[0]), "1000000"]
    with subprocess.Popen(command, env=environment) as long:
        while not paths[0].exists() and long.poll() is None:
            time.sleep(0.1)
        long.send_signal(signal.SIGTERM)
    long = read(paths[0])
    epochs = len(long["records"])
    command = [*launcher, str(script), str(paths[1]), str(epochs)]
    subprocess.run(command, env=environment, check=True)
    short = read(paths[1])
    assert_same_state(long["posterior"], short["posterior"])
    for own, other in zip(long["random"], short["random"], strict=True):
        assert torch.equal(own["torch"], other["torch"])
