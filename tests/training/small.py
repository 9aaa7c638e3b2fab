"""Small problems to train on, and how to compare what came of it."""

import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.generators import Sliced
from scenarios import mlp

NUM_DATA = 12
Categorical = bbh.likelihoods.Categorical
SMALL = Sliced(hidden=(8, 8))


def dataset(num_data=NUM_DATA):
    generator = torch.Generator().manual_seed(42)
    inputs = torch.randn(num_data, 4, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 3, (num_data,), generator=generator))


def point(network=None, likelihood=None, **options):
    return bbh.methods.maximum_a_posteriori(
        network or nn.Linear(4, 3), likelihood or Categorical(), **options
    )


def hypernet(network=None, **options):
    return bbh.methods.bayes_by_hypernet(
        network or mlp(), Categorical(), generator=SMALL, **options
    )


def fit(
    posterior,
    loader,
    epochs=1,
    *,
    validation=None,
    patience=None,
    checkpoint=None,
    resume=False,
    seconds=0.0,
    **options,
):
    if validation is not None:
        options["validation"] = bbh.Validation(validation, patience=patience)
    if checkpoint is not None:
        options["checkpoint"] = bbh.Checkpoint(checkpoint, resume=resume, seconds=seconds)
    return bbh.fit(posterior, loader, epochs=epochs, **{"progress": False, **options})


def sgd(rate, **options):
    return lambda parameters: SGD(parameters, lr=rate, **options)


def copied(posterior):
    return {name: value.clone() for name, value in posterior.state_dict().items()}


def assert_same_state(first, second):
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert different == []


def without_seconds(history):
    return [{**record, "seconds": 0} for record in history.to_dicts()]


def worsening():
    """A network that knows it all, wrong data to train it on, and right ones to judge by."""
    torch.manual_seed(11)
    inputs = torch.randn(60, 4)
    targets = inputs[:, :3].argmax(-1)
    network = nn.Linear(4, 3)
    with torch.no_grad():
        network.weight.copy_(3 * torch.eye(3, 4))
        network.bias.zero_()
    wrong = DataLoader(TensorDataset(inputs, (targets + 1) % 3), batch_size=20)
    right = DataLoader(TensorDataset(inputs, targets), batch_size=20)
    return network, wrong, right
