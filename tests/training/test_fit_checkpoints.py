"""fit: checkpoints, and going on from them."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

import bbh
from bbh.files import seal
from bbh.training import checkpoints
from bbh.training.checkpoints import CheckpointError
from bbh.training.random_numbers import random_state, restore_random_state
from scenarios import mlp
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
    worsening,
)


class Augmented(Dataset):
    """Random in every way a dataset can be: torch, NumPy and, if told so, Python."""

    def __init__(self, python=False):
        self.python = python

    def __len__(self):
        return NUM_DATA

    def __getitem__(self, index):
        inputs, target = dataset()[index]
        shift = torch.randn(4) + np.random.normal()  # noqa: NPY002
        if self.python:
            shift = shift + random.gauss(0, 1)
        return (inputs + 0.3 * shift).float(), target


class TestCheckpoints:
    def test_written_no_more_often_than_asked(self, tmp_path, monkeypatch):
        written = []
        monkeypatch.setattr(
            "bbh.training.checkpoints.write",
            lambda path, state: written.append(state["step"]),
        )
        loader = DataLoader(dataset(), batch_size=4)
        for seconds in (0.0, 3600.0):
            fit(point(), loader, 3, checkpoint=tmp_path / "file", seconds=seconds)
        assert len(written) == 3  # after each epoch of the first run, and never in the second

    def train(self, epochs, path=None, *, seed=5, patience=None, python=False, **options):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        torch.manual_seed(1)
        posterior = hypernet()
        torch.manual_seed(seed)
        loader = DataLoader(
            Augmented(python),
            batch_size=5,
            shuffle=True,
            generator=torch.Generator().manual_seed(seed),
        )
        history = fit(
            posterior,
            options.pop("loader", lambda whole: whole)(loader),
            epochs,
            checkpoint=path,
            scheduler=lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
            validation=DataLoader(dataset(), batch_size=6),
            patience=patience,
            beta=1.0,  # by default it depends on how many epochs there are in all
            **options,
        )
        return posterior, history

    @pytest.mark.parametrize("patience", [None, 2])
    def test_resumed_run_is_bit_for_bit_the_uninterrupted_one(self, tmp_path, patience):
        self.interrupt_twice(tmp_path / "deep" / "er" / "checkpoint", patience=patience)

    def interrupt_twice(self, path, **options):
        whole, history = self.train(6, **options)
        expected = torch.rand(1).item(), np.random.rand()  # noqa: NPY002
        self.train(2, path, **options)
        self.train(3, path, resume=True, seed=77, **options)
        resumed, again = self.train(6, path, resume=True, seed=99, **options)
        assert (torch.rand(1).item(), np.random.rand()) == expected  # noqa: NPY002
        assert_same_state(whole.state_dict(), resumed.state_dict())
        assert without_seconds(history) == without_seconds(again)
        assert history.best_epoch == again.best_epoch
        assert len(list(path.parent.iterdir())) == 1

    @pytest.mark.slow
    def test_pythons_random_numbers_in_the_dataset(self, tmp_path):
        # In a process of its own: the checks of types that tests switch on use them as well.
        script = (
            "import sys; from pathlib import Path; "
            "from training.test_fit_checkpoints import TestCheckpoints; "
            "TestCheckpoints().interrupt_twice(Path(sys.argv[1]), python=True)"
        )
        command = [sys.executable, "-c", script, str(tmp_path / "checkpoint")]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=Path(__file__).parents[1]
        )
        assert done.returncode == 0, done.stderr[-2000:]

    def test_all_random_states_are_put_back(self):
        own = torch.Generator().manual_seed(8)
        state = random_state([own])

        def draw():
            restore_random_state(state, [own])
            numbers = random.gauss(0, 1), np.random.normal(), torch.rand(1).item()  # noqa: NPY002
            return *numbers, torch.rand(1, generator=own).item()

        first = draw()
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(123)
        assert draw() == first

    def test_early_stop_carries_over(self, tmp_path):
        """The best epoch lies before the interruption and is restored after it."""
        network, wrong, right = worsening()
        options = {"validation": right, "patience": 4, "checkpoint": tmp_path / "c"}
        fit(point(network), wrong, 3, **options)
        posterior = point(network)
        history = fit(posterior, wrong, 20, resume=True, **options)
        assert (history.best_epoch, len(history)) == (1, 5)
        assert bbh.evaluate(posterior, right) == history[0].validation
        again = point(network)
        assert len(fit(again, wrong, 20, resume=True, **options)) == 5  # nothing left to do
        assert_same_state(posterior.state_dict(), again.state_dict())

    def test_finished_run_is_not_trained_further(self, tmp_path):
        first, _ = self.train(3, tmp_path / "checkpoint")
        second, history = self.train(3, tmp_path / "checkpoint", resume=True, seed=99)
        assert len(history) == 3
        assert_same_state(first.state_dict(), second.state_dict())

    def test_resume_without_a_file_starts_anew(self, tmp_path):
        first, _ = self.train(2)
        second, _ = self.train(2, tmp_path / "checkpoint", resume=True)
        assert_same_state(first.state_dict(), second.state_dict())

    def test_existing_file_is_not_overwritten(self, tmp_path):
        path = tmp_path / "checkpoint"
        path.write_text("precious")
        posterior = point()
        before = copied(posterior)
        with pytest.raises(FileExistsError, match="resume=True"):
            fit(posterior, DataLoader(dataset()), checkpoint=path)
        assert path.read_text() == "precious"
        assert_same_state(posterior.state_dict(), before)

    @pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.99])
    def test_truncated(self, tmp_path, keep):
        path = tmp_path / "checkpoint"
        fit(point(), DataLoader(dataset()), checkpoint=path)
        whole = path.read_bytes()
        path.write_bytes(whole[: keep if isinstance(keep, int) else int(keep * len(whole))])
        with pytest.raises(CheckpointError, match="checkpoint"):
            fit(point(), DataLoader(dataset()), 2, checkpoint=path, resume=True)

    def test_no_flipped_bit_goes_unnoticed(self, tmp_path):
        path = tmp_path / "checkpoint"
        fit(point(), DataLoader(dataset()), checkpoint=path)
        whole = path.read_bytes()
        assert checkpoints.read(path)["step"] == NUM_DATA
        for position in range(0, len(whole), 61):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << position % 8
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=f"{path} is truncated or damaged"):
                checkpoints.read(path)

    def test_a_checkpoint_of_an_earlier_version(self, tmp_path):
        torch.save({"format": 1}, tmp_path / "checkpoint")
        with pytest.raises(CheckpointError, match="no checkpoint of this version"):
            checkpoints.read(tmp_path / "checkpoint")

    @pytest.mark.parametrize(
        "content",
        [{"format": 1}, {"format": 3}, {"format": 99}, {"epoch": 3}, [1, 2], torch.ones(3)],
        ids=["older", "bare", "newer", "another program's", "list", "tensor"],
    )
    def test_foreign(self, tmp_path, content):
        torch.save(content, tmp_path / "checkpoint")
        seal(tmp_path / "checkpoint")
        with pytest.raises(CheckpointError, match="checkpoint"):
            fit(point(), DataLoader(dataset()), checkpoint=tmp_path / "checkpoint", resume=True)

    @pytest.mark.parametrize(
        "name",
        [
            "settings",
            "posterior",
            "optimizer",
            "random",
            "records",
            "best_epoch",
            "best_state",
            "average",
            "step",
        ],
    )
    def test_tampered_with_and_sealed_again(self, tmp_path, name):
        """Any part may be missing or something else: always the same error, and at once."""
        path, loader = tmp_path / "checkpoint", DataLoader(dataset(), batch_size=4)
        options = {"validation": loader, "patience": 3, "checkpoint": path, "compare": False}
        fit(point(), loader, **options)
        whole = checkpoints.read(path)
        for junk in ("gone", 3.5, {"a": 1}, [torch.ones(2)]):
            changed = whole | {name: junk}
            if junk == "gone":
                del changed[name]
            torch.save(changed, path)
            seal(path)
            if (name, str(junk)) in (("step", "3.5"), ("settings", "{'a': 1}")):
                continue  # any number of steps will do, and so do settings of another version
            with pytest.raises(CheckpointError, match=str(path)):
                fit(point(), loader, 2, resume=True, **options)

    def test_code_in_a_checkpoint_is_not_run(self, tmp_path):
        marker = tmp_path / "executed"

        class Exploit:
            def __reduce__(self):
                return Path.touch, (marker,)

        torch.save({"format": 2, "posterior": Exploit()}, tmp_path / "checkpoint")
        seal(tmp_path / "checkpoint")
        with pytest.raises(CheckpointError):
            fit(point(), DataLoader(dataset()), checkpoint=tmp_path / "checkpoint", resume=True)
        assert not marker.exists()

    @pytest.mark.parametrize(
        ("other", "named"),
        [
            ({"posterior": mlp}, r"network\.modules=1, not 4"),
            (
                {"posterior": lambda: nn.Linear(4, 3, bias=False)},
                r"network=Linear\(.*bias=True\), not Linear\(.*bias=False\)",
            ),
            ({"optimizer": sgd(0.1)}, "not SGD"),
            ({"scheduler": lambda optimizer: lr_scheduler.StepLR(optimizer, 1)}, "not StepLR"),
        ],
        ids=["network", "fewer tensors", "optimizer", "scheduler"],
    )
    def test_of_another_run(self, tmp_path, other, named):
        path, loader = tmp_path / "checkpoint", DataLoader(dataset(), batch_size=4)
        fit(point(), loader, checkpoint=path)
        options = dict(other)
        posterior = point(options.pop("posterior", lambda: None)())
        with pytest.raises(CheckpointError, match=named):
            fit(posterior, loader, 2, checkpoint=path, resume=True, **options)

    def test_interrupt_in_an_epoch_leaves_the_checkpoint_usable(self, tmp_path):
        class Interrupted:
            """Ctrl-C in the second batch of the third epoch."""

            def __init__(self, loader):
                self.loader, self.epochs = loader, 0
                self.generator = loader.generator

            def __len__(self):
                return len(self.loader)

            def __iter__(self):
                self.epochs += 1
                for index, batch in enumerate(self.loader):
                    if (self.epochs, index) == (3, 1):
                        raise KeyboardInterrupt
                    yield batch

        path = tmp_path / "checkpoint"
        whole, history = self.train(4)
        with pytest.raises(KeyboardInterrupt):
            self.train(4, path, loader=Interrupted, num_data=NUM_DATA)
        resumed, again = self.train(4, path, resume=True, seed=99)
        assert_same_state(whole.state_dict(), resumed.state_dict())
        assert without_seconds(history) == without_seconds(again)

    def test_interrupt_while_writing_leaves_the_earlier_one(self, tmp_path, monkeypatch):
        path, save = tmp_path / "checkpoint", torch.save
        fit(point(), DataLoader(dataset()), checkpoint=path)
        before = path.read_bytes()

        def half(state, file):
            save(state, file)
            file.truncate(50)
            raise KeyboardInterrupt

        monkeypatch.setattr(torch, "save", half)
        with pytest.raises(KeyboardInterrupt):
            fit(point(), DataLoader(dataset()), 2, checkpoint=path, resume=True)
        assert path.read_bytes() == before
        assert [one.name for one in tmp_path.iterdir()] == ["checkpoint"]

    @pytest.mark.parametrize("keeps", [False, True])
    def test_workers_that_keep_random_numbers_are_warned_about(self, tmp_path, caplog, keeps):
        path, data = tmp_path / "checkpoint", dataset()
        fit(point(), DataLoader(data, batch_size=4), checkpoint=path)
        loader = DataLoader(data, batch_size=4, num_workers=1, persistent_workers=keeps)
        fit(point(), loader, 1, checkpoint=path, resume=True, compare=False)  # nothing left to do
        assert ("persistent_workers=True" in caplog.text) == keeps

    @pytest.mark.parametrize(
        "schedule",
        [
            lambda o: lr_scheduler.MultiStepLR(o, [1, 2]),
            lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=12),
            lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
            lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
            lambda o: lr_scheduler.SequentialLR(
                o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.5)], [1]
            ),
        ],
        ids=["steps", "one cycle", "lambda", "plateau", "sequence"],
    )
    def test_every_schedule_can_be_stored(self, tmp_path, schedule):
        network, path = nn.Linear(4, 3), tmp_path / "checkpoint"
        loader = DataLoader(dataset(), batch_size=4)
        whole, resumed = point(network), point(network)
        history = fit(whole, loader, 4, scheduler=schedule)
        fit(point(network), loader, 2, scheduler=schedule, checkpoint=path)
        again = fit(resumed, loader, 4, scheduler=schedule, checkpoint=path, resume=True)
        assert_same_state(whole.state_dict(), resumed.state_dict())
        assert without_seconds(history) == without_seconds(again)
