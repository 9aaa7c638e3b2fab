"""fit: Ctrl-C and SIGTERM wait for the end of the epoch and its checkpoint."""

import os
import signal
import threading

import pytest
import torch
from torch.utils.data import DataLoader

from bbh.training.checkpoints import read
from training.small import assert_same_state, dataset, fit, point

EPOCHS = 4


@pytest.fixture(autouse=True)
def _as_on_the_command_line():
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does; undone, since it would end the tests."""
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    for one in before:
        signal.signal(one, signal.default_int_handler)
    yield
    after = {one: signal.getsignal(one) for one in before}
    for one, handler in before.items():
        signal.signal(one, handler)
    assert set(after.values()) <= {signal.default_int_handler, own_handler}


def own_handler(number, frame):
    raise ArithmeticError("the user's own handler")


class Loader:
    """Sends signals in the second of three batches of the second epoch."""

    def __init__(self, *signals, then=None):
        self.signals, self.then = signals, then
        self.epochs = self.batches = 0

    def __len__(self):
        return 3

    def __iter__(self):
        self.epochs += 1
        for number, batch in enumerate(DataLoader(dataset(), batch_size=4)):
            if (self.epochs, number) == (2, 1):
                for one in self.signals:
                    signal.raise_signal(one)
                if self.then is not None:
                    raise self.then
            self.batches += 1
            yield batch


def train(loader, **options):
    torch.manual_seed(1)
    posterior = point()
    fit(posterior, loader, EPOCHS, num_data=12, compare=False, **options)
    return posterior


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_epoch_is_finished_and_its_checkpoint_written_first(tmp_path, number):
    options = {"checkpoint": tmp_path / "checkpoint", "seconds": 3600.0}
    loader = Loader(number)
    with pytest.raises(KeyboardInterrupt):
        train(loader, **options)
    assert loader.batches == 6
    assert len(read(options["checkpoint"])["records"]) == 2
    resumed = train(Loader(), **options, resume=True)
    assert_same_state(resumed.state_dict(), train(Loader()).state_dict())


def test_a_second_signal_stops_at_once(tmp_path):
    loader = Loader(signal.SIGTERM, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(loader, checkpoint=tmp_path / "checkpoint")
    assert loader.batches == 4
    assert len(read(tmp_path / "checkpoint")["records"]) == 1


def test_without_a_checkpoint_there_is_nothing_to_wait_for():
    loader = Loader(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(loader)
    assert loader.batches == 4


def test_a_handler_of_the_users_own_stays(tmp_path):
    signal.signal(signal.SIGTERM, own_handler)
    with pytest.raises(ArithmeticError, match="own handler"):
        train(Loader(signal.SIGTERM), checkpoint=tmp_path / "checkpoint")


def test_an_error_that_follows_from_the_signal_is_not_shown_instead(tmp_path):
    """The processes of a data loader get Ctrl-C too, and are missed by the main process."""
    dead = RuntimeError("DataLoader worker exited unexpectedly")
    with pytest.raises(KeyboardInterrupt):
        train(Loader(signal.SIGINT, then=dead), checkpoint=tmp_path / "checkpoint")
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        train(Loader(then=dead), checkpoint=tmp_path / "other")


def test_other_threads_train_as_ever(tmp_path):
    trained = []
    options = {"checkpoint": tmp_path / "checkpoint"}
    thread = threading.Thread(target=lambda: trained.append(train(Loader(), **options)))
    thread.start()
    thread.join()
    assert_same_state(trained[0].state_dict(), train(Loader()).state_dict())


def test_half_written_checkpoints_of_killed_programs_are_removed(tmp_path):
    (tmp_path / ".checkpoint.abc.tmp").write_bytes(b"half")
    (tmp_path / ".other.abc.tmp").write_bytes(b"half")
    train(Loader(), checkpoint=tmp_path / "checkpoint", seconds=3600.0)
    assert sorted(os.listdir(tmp_path)) == [".other.abc.tmp"]
