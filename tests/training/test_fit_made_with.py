"""fit: a checkpoint is resumed only with the settings that it was made with."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

import bbh
from bbh.training import CheckpointError
from bbh.training.checkpoints import read_settings
from training.small import Categorical, assert_same_state, copied, dataset, hypernet, point, sgd


def cosine(steps):
    return lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, steps)


def train(path, *, posterior=point, batch_size=4, resume=False, settings=None, **options):
    torch.manual_seed(1)
    trained = posterior()
    before = copied(trained)
    checkpoint = bbh.Checkpoint(path, resume=resume, settings=settings or {})
    options = {"epochs": 1, "progress": False, "compare": False} | options
    try:
        bbh.fit(trained, DataLoader(dataset(), batch_size), checkpoint=checkpoint, **options)
    except CheckpointError:
        assert_same_state(trained.state_dict(), before)  # refused before anything changed
        raise


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A checkpoint of the plainest call."""
    path = tmp_path_factory.mktemp("plain") / "checkpoint"
    train(path, settings={"data": "old"})
    return path


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"learning_rate": 0.5}, r"optimizer\.lr=0\.001, not 0\.5"),
        ({"optimizer": sgd(0.1)}, r"optimizer\.kind=FactoredAdam, not SGD"),
        ({"scheduler": cosine(9)}, r"scheduler\.kind=NoneType, not CosineAnnealingLR"),
        ({"num_data": 100}, r"num_data=12, not 100"),
        ({"temperature": 0.1}, r"temperature=1\.0, not 0\.1"),
        ({"beta": 0.1}, r"beta=the method's own, not 0\.1"),
        ({"gradient_clip": 0.1}, r"gradient_clip=None, not 0\.1"),
        ({"num_samples": 3}, r"num_samples=None, not 3"),
        ({"batch_size": 3}, r"loader\.batch_size=4, not 3; loader\.batches=3, not 4"),
        ({"settings": {"data": "new", "seed": 3}}, "with data=old, not new"),
        (
            {"posterior": lambda: point(prior=bbh.priors.Normal(7.0))},
            r"prior\.scale=1\.0, not 7\.0",
        ),
        ({"posterior": lambda: point(prior=bbh.priors.Laplace())}, "prior=Normal, not Laplace"),
        (
            {"posterior": lambda: point(likelihood=Categorical((1.0, 2.0, 1.0)))},
            r"likelihood\.class_weights=None, not 1\.0, 2\.0, 1\.0",
        ),
    ],
)
def test_other_settings_are_refused_by_name(plain, changed, named):
    with pytest.raises(CheckpointError, match=named):
        train(plain, resume=True, **changed)


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (
            {"optimizer": sgd(0.1), "scheduler": cosine(4)},
            {"optimizer": sgd(0.1, momentum=0.5), "scheduler": cosine(9)},
            r"optimizer\.momentum=0, not 0\.5; scheduler state\.T_max=4, not 9",
        ),
        ({"beta": bbh.Linear(1, 3)}, {"beta": bbh.Linear(1, 4)}, r"beta\.end=3, not 4"),
        (
            {"posterior": lambda: hypernet(noise=bbh.GaussianNoise(2))},
            {"posterior": lambda: hypernet(noise=bbh.GaussianNoise(3))},
            r"method\.arguments\.noise\.dim=2, not 3",
        ),
        (
            {"posterior": lambda: point(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))},
            {"posterior": lambda: point(nn.Sequential(nn.Linear(4, 3), nn.Tanh()))},
            r"network\.1=ReLU\(\), not Tanh\(\)",
        ),
    ],
    ids=["optimizer", "schedule of beta", "argument of a method", "network"],
)
def test_parts_of_other_settings_are_refused_by_name(tmp_path, first, second, named):
    train(tmp_path / "checkpoint", **first)
    with pytest.raises(CheckpointError, match=named):
        train(tmp_path / "checkpoint", resume=True, **second)


def test_tensors_are_compared_by_their_values(tmp_path):
    first, second = nn.Linear(4, 3), nn.Linear(4, 3)

    def around(centre):
        return point(first, prior=bbh.priors.Centred.on(centre, bbh.priors.Normal(1.0)))

    train(tmp_path / "checkpoint", posterior=lambda: around(first))
    train(tmp_path / "checkpoint", posterior=lambda: around(first), resume=True)
    with pytest.raises(CheckpointError, match=r"prior\.\S+weight=\w+, not \w+"):
        train(tmp_path / "checkpoint", posterior=lambda: around(second), resume=True)


def test_what_may_change(tmp_path):
    path = tmp_path / "checkpoint"
    train(path, beta=lambda epoch: 1.0)
    validation = bbh.Validation(DataLoader(dataset(), 4), patience=1)
    settings = {"newer": 1}
    # Functions are code, which is not compared.
    half = {"beta": lambda epoch: 0.5}
    train(path, resume=True, epochs=2, validation=validation, settings=settings, **half)


def test_settings_can_be_read_without_tensors(plain):
    settings = read_settings(plain)
    assert settings["temperature"] == 1.0
    assert settings["settings.data"] == "old"
    assert settings["loader.batches"] == 3
