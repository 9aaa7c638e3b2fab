"""Two processes that keep what they train in shards."""

from functools import partial

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import FSDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.training.sharding import check_strategy
from scenarios import METHODS, BatchNormNet, mlp
from training.small import assert_same_state, copied, dataset, fit, hypernet, point, sgd
from training.together import together

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="needs torch.distributed"
)
Categorical = bbh.likelihoods.Categorical


def in_shards():
    strategy = bbh.sharded_strategy(torch.distributed.get_world_size())
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    return fabric


def images():
    torch.manual_seed(4)
    return TensorDataset(torch.randn(12, 1, 5, 5), torch.arange(12) % 3)


def numbers():
    inputs, targets = dataset().tensors
    return TensorDataset(inputs, 3 * targets[:, None].float())


# Posteriors, data, and options of fit.
CASES = {
    name: (partial(method, likelihood=Categorical()), dataset, {})
    for name, method in METHODS.items()
}
CASES |= {
    "learned noise": (
        lambda _: bbh.methods.bayes_by_backprop(nn.Linear(4, 1), bbh.likelihoods.Gaussian()),
        numbers,
        {"gradient_clip": 0.1},
    ),
    "batch norm": (lambda _: point(BatchNormNet()), images, {"average_epochs": 1}),
    "directions": (
        lambda network: bbh.methods.bayes_by_hypernet(
            network, Categorical(), generator=bbh.generators.Directions()
        ),
        dataset,
        {"validation": DataLoader(dataset(), 12), "patience": 1},
    ),
}


def train_in_both_ways(fabric):
    """Every case with whole parameters in both processes, and with shards."""
    found = {}
    shards = in_shards()
    for name, (method, data, options) in CASES.items():
        for one in (fabric, shards):
            torch.manual_seed(fabric.global_rank)
            posterior = method(mlp())
            torch.manual_seed(10 + fabric.global_rank)
            loader = DataLoader(data(), batch_size=3)
            history = fit(posterior, loader, 1, fabric=one, compare=False, **options)
            assert all(type(value) is nn.Parameter for value in posterior.parameters())
            records = [record | {"seconds": 0} for record in history.to_dicts()]
            found.setdefault(name, []).append((copied(posterior), records))
    return found


def test_shards_are_trained_as_whole_parameters_are():
    """With the same random numbers the two ways differ by rounding, for every method."""
    first, second = together(train_in_both_ways)
    for name, ((whole, history), (shards, other)) in first.items():
        assert_same_state(whole, second[name][0][0])
        assert_same_state(shards, second[name][1][0])
        assert other == second[name][1][1]
        validation = history[-1].pop("validation"), other[-1].pop("validation")
        assert validation[1] == pytest.approx(validation[0], rel=1e-4), name
        assert other[-1] == pytest.approx(history[-1], rel=1e-4), name
        for key, value in whole.items():
            torch.testing.assert_close(shards[key], value)


def train_alone_or_not(fabric):
    """Training without random numbers, and how many numbers this process kept of each."""
    kept = []

    def momentum(parameters):
        optimizer = sgd(0.3, momentum=0.5)(parameters)
        for group in optimizer.param_groups:
            kept.extend(group["params"])
        return optimizer

    torch.manual_seed(0)
    posterior = point(mlp())
    shards = in_shards() if fabric.world_size > 1 else fabric
    loader = DataLoader(dataset(), batch_size=6 // fabric.world_size)
    history = fit(posterior, loader, 3, optimizer=momentum, fabric=shards)
    own = [one.to_local() if fabric.world_size > 1 else one for one in kept]
    return copied(posterior), sum(one.numel() for one in own), history[-1].total


def test_two_processes_give_what_one_gives_and_keep_a_half_each():
    first, second = together(train_alone_or_not)
    state, number, total = train_alone_or_not(Fabric(accelerator="cpu", devices=1))
    assert first[1] + second[1] == number
    assert abs(first[1] - second[1]) <= 16  # an odd row of a matrix
    assert first[2] == second[2] == pytest.approx(total, rel=1e-5)
    assert_same_state(first[0], second[0])
    for name, value in state.items():
        torch.testing.assert_close(first[0][name], value)


def train_critic(fabric):
    posterior = hypernet(divergence=bbh.divergences.Adversarial(pretraining=1))
    fit(posterior, DataLoader(dataset(), 3), 1, fabric=in_shards(), compare=False)
    return copied(posterior)


def diverge(fabric):
    """One process has a spoilt batch: all stop, and have whole parameters from before."""
    torch.manual_seed(0)
    posterior = hypernet()
    before = copied(posterior)
    data = dataset()
    if fabric.global_rank == 1:
        data.tensors[0][:] = float("nan")
    with pytest.raises(bbh.DivergedError, match="the nll is nan"):
        fit(posterior, DataLoader(data, 3), 1, fabric=in_shards(), compare=False)
    assert_same_state(copied(posterior), before)


def refuse(fabric, folder):
    shards, loader = in_shards(), DataLoader(dataset(), 3)
    with pytest.raises(ValueError, match=r"checkpoint= is not supported .* shards"):
        fit(point(), loader, 1, fabric=shards, checkpoint=folder / "file")
    posterior = point()
    optimizer = torch.optim.Adam(posterior.parameters())
    with pytest.raises(TypeError, match="pass a function that makes the optimizer"):
        bbh.TrainingStep(posterior, optimizer, num_data=12, fabric=shards)


def several(fabric, folder):
    refuse(fabric, folder)
    diverge(fabric)
    return train_critic(fabric)


@pytest.mark.slow
def test_critics_failures_and_what_is_refused(tmp_path):
    first, second = together(several, tmp_path)
    assert_same_state(first, second)


def test_the_first_version_of_fsdp_is_refused():
    with pytest.raises(ValueError, match=r"strategy=bbh\.sharded_strategy\(processes=…\)"):
        check_strategy(FSDPStrategy(), checkpoint=False)
