"""cached_features: the posterior of a last module, trained on features computed once."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bbh
from scenarios import BatchNormNet, over_methods
from training.small import assert_same_state, copied

NUM_DATA = 24
Categorical = bbh.likelihoods.Categorical


def images() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(NUM_DATA, 1, 6, 6, generator=generator),
        torch.randint(0, 3, (NUM_DATA,), generator=generator),
    )


def frozen(method: Any = bbh.methods.maximum_a_posteriori, **options: Any) -> bbh.Posterior[Any]:
    torch.manual_seed(2)
    network = BatchNormNet()
    network(torch.randn(16, 1, 6, 6))  # statistics that are not the initial ones
    return method(network, Categorical(), **{"bayesian": "head", "freeze_rest": True, **options})


@over_methods
def test_training_is_the_same_as_without_the_cache(method):
    plain, cached = frozen(method), frozen(method)
    options: dict[str, Any] = {"epochs": 3, "learning_rate": 0.05, "progress": False}
    histories: list[Any] = []
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    for posterior in (plain, cached):
        loader = DataLoader(images(), 7, shuffle=True, drop_last=True)
        judge = DataLoader(images(), 10)
        torch.manual_seed(3)
        if posterior is plain:
            histories.append(bbh.fit(posterior, loader, validation=judge, **options))
            continue
        with bbh.cached_features(posterior, loader, judge) as (features, held_out):
            posterior.network.get_submodule("conv").register_forward_pre_hook(count)
            histories.append(bbh.fit(posterior, features, validation=held_out, **options))
            assert calls == 0
    assert [one.nll for one in histories[0]] == pytest.approx([one.nll for one in histories[1]])
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(cached.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    # Afterwards it takes images again.
    torch.manual_seed(4)
    first = bbh.predict(plain, images()[:][0], 3).mean
    torch.manual_seed(4)
    second = bbh.predict(cached, images()[:][0], 3).mean
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


def test_features_follow_the_loader():
    posterior = frozen()
    inputs, targets = images()[:]
    weights = torch.rand(NUM_DATA)
    data = TensorDataset(inputs, targets)
    network = BatchNormNet().eval()
    network.load_state_dict(
        posterior.frozen()
        | posterior.constants()
        | {k: v[0] for k, v in posterior.sample(1).items()}
    )
    expected = torch.relu(network.norm(network.conv(inputs))).mean((2, 3))
    batches = [(inputs[:9], targets[:9], weights[:9]), (inputs[9:], targets[9:], weights[9:])]
    sampler = torch.utils.data.SubsetRandomSampler(range(5))
    with bbh.cached_features(
        posterior, DataLoader(data, 5), batches, DataLoader(data, 5, sampler=sampler)
    ) as (loader, listed, some):
        torch.testing.assert_close(torch.cat([one[0] for one in loader]), expected)
        torch.testing.assert_close(torch.cat([one[0] for one in listed]), expected)
        assert torch.equal(torch.cat([one[1] for one in loader]), targets)
        assert torch.equal(torch.cat([one[2] for one in listed]), weights)
        assert len(loader.dataset) == NUM_DATA
        assert sum(len(one[1]) for one in some) == 5


def test_a_file_written_in_the_block_is_the_same(tmp_path):
    posterior = frozen(bbh.methods.bayes_by_backprop)
    with bbh.cached_features(posterior, DataLoader(images(), 8)):
        bbh.save(posterior, tmp_path / "file", with_frozen=True)
    again = bbh.load(tmp_path / "file", BatchNormNet())
    assert_same_state(again.state_dict(), copied(posterior))


def test_the_block_leaves_random_state_and_mode_alone():
    posterior = frozen().eval()
    loader = DataLoader(images(), 8, shuffle=True)
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with bbh.cached_features(posterior, loader):
        assert not posterior.training
        assert torch.equal(torch.rand(2), expected)


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(1, 6, 6), index % 3


class Odd(nn.Module):
    """A head that is used in ways that a cache of its inputs cannot follow."""

    def __init__(self, way: str):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)
        self.way = way

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.body(inputs)
        if self.way == "after":
            return self.head(hidden).square()
        if self.way == "twice":
            return self.head(self.head(hidden))
        if self.way == "before":
            return self.head(hidden @ self.head.weight)
        if self.way == "named":
            return self.head(input=hidden)
        return self.head(hidden.reshape(-1, 2, 2).repeat(1, 1, 2).flatten(0, 1)).unflatten(
            0, (-1, 2)
        )[:, 0]


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("after", "are not those of the network"),
        ("before", "are not those of the network"),
        ("twice", "calls module 'head' 2 times"),
        ("named", "not called with exactly one tensor"),
        ("tokens", "16 features for a batch of 8"),
    ],
)
def test_a_cache_that_would_be_wrong_is_refused(way, message):
    posterior = bbh.methods.bayes_by_backprop(
        Odd(way), Categorical(), bayesian="head", freeze_rest=True, initial_scale=0.5
    )
    loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.long)), 8)
    with pytest.raises(ValueError, match=message), bbh.cached_features(posterior, loader):
        pass


def test_posteriors_without_features_and_random_inputs_are_refused():
    loader = DataLoader(images(), 8)
    for posterior, message in (
        (frozen(freeze_rest=False), "no single module of the network has all"),
        (frozen(bayesian=["head", "conv"]), "conv.weight, conv.bias, head.weight"),
        (by_hand(), "may compute something else in training"),
    ):
        with pytest.raises(ValueError, match=message), bbh.cached_features(posterior, loader):
            pass
    with (
        pytest.raises(ValueError, match="random augmentation"),
        bbh.cached_features(frozen(), DataLoader(Augmented(), 4)),
    ):
        pass


def by_hand() -> bbh.Posterior[Any]:
    """Parameters that are frozen by hand, with the network in training mode."""
    network = BatchNormNet().requires_grad_(False)
    network.head.requires_grad_(True)
    return bbh.methods.maximum_a_posteriori(network, Categorical())
