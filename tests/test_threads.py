"""Tiny work is done by one thread, everything else by torch's own number; all is put back."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.threads import TINY_WORK, Work, num_positions, threads_for

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class Watching(nn.Module):
    """Notes in every pass how many threads there are."""

    seen: list[int] = []  # noqa: RUF012, shared by copies

    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 3))

    def forward(self, inputs):
        self.seen.append(torch.get_num_threads())
        return self.layers(inputs)


def trained(width: int, **settings) -> tuple[bbh.Posterior, list[int]]:
    torch.manual_seed(0)
    Watching.seen.clear()
    posterior = bbh.methods.maximum_a_posteriori(Watching(width), bbh.likelihoods.Categorical())
    data = TensorDataset(torch.randn(20, 2), torch.randint(3, (20,)))
    loader = DataLoader(data, 10, shuffle=True)
    bbh.fit(posterior, loader, epochs=2, progress=False, compare=False, **settings)
    return posterior, list(Watching.seen)


@pytest.mark.parametrize(
    ("work", "asked", "expected"),
    [(TINY_WORK, None, 1), (TINY_WORK + 1, None, 3), (0, 2, 2), (10**12, 2, 2), (0, 3, 3)],
)
def test_which_number(work, asked, expected):
    with threads_for(work, CPU, asked):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == 3


def test_put_back_after_an_error():
    with pytest.raises(KeyError), threads_for(0, CPU, None):
        raise KeyError
    assert torch.get_num_threads() == 3


def test_other_devices_have_no_threads():
    with threads_for(0, torch.device("meta"), 2):
        assert torch.get_num_threads() == 3


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "two"])
def test_wrong_numbers(wrong):
    with pytest.raises((TypeError, ValueError), match="num_threads"), threads_for(0, CPU, wrong):
        pass


@pytest.mark.parametrize(
    ("width", "settings", "expected"),
    # 10 rows meet 5·200,000 weights in every step.
    [(5, {}, 1), (200_000, {}, 3), (5, {"num_threads": 2}, 2)],
)
def test_training_and_prediction(width, settings, expected):
    posterior, seen = trained(width, **settings)
    assert set(seen) == {expected}
    Watching.seen.clear()
    bbh.predict(posterior, torch.randn(10, 2), **settings)
    assert set(Watching.seen) == {expected}
    assert torch.get_num_threads() == 3


def test_tiny_results_do_not_depend_on_the_number_of_cores():
    torch.set_num_threads(1)
    one, _ = trained(50)
    torch.set_num_threads(3)
    several, _ = trained(50)
    for name, value in one.state_dict().items():
        assert torch.equal(value, several.state_dict()[name]), name


def test_frozen_parts_of_a_network_count():
    network = nn.Sequential(nn.Linear(2, 1000), nn.Linear(1000, 1000), nn.Linear(1000, 3))
    last = bbh.methods.maximum_a_posteriori(
        network, bbh.likelihoods.Categorical(), bayesian="2", freeze_rest=True
    )
    assert Work(last)(1, torch.zeros(1, 2)) >= 1_000_000


def test_work_of_a_fully_connected_network_is_exact():
    posterior = bbh.methods.maximum_a_posteriori(nn.Linear(4, 3), bbh.likelihoods.Categorical())
    # Fifteen weights, made from as many parameters and met by seven rows.
    assert Work(posterior)(1) == 15
    assert Work(posterior)(2, torch.zeros(7, 4)) == 2 * (15 + 15 * 7)


@pytest.mark.parametrize(
    ("inputs", "positions"),
    [
        (torch.zeros(5), 5),
        (torch.zeros(5, 9), 5),
        (torch.zeros(5, 4, 9), 20),
        ((torch.zeros(5, 9), torch.zeros(5, 100)), 5),
        (torch.zeros(0, 9), 0),
        (torch.zeros(5, 0), 0),
    ],
)
def test_positions(inputs, positions):
    assert num_positions(inputs) == positions


def test_inputs_of_unknown_size_are_not_tiny():
    assert num_positions(object()) >= TINY_WORK
