"""fit: optimizers, schedules, helper networks, and averages of the parameters."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, lr_scheduler
from torch.utils.data import DataLoader

import bbh
from bbh.training.checkpoints import CheckpointError
from training.small import assert_same_state, copied, dataset, fit, hypernet, point, sgd, worsening


class TestOptimizers:
    def test_any_optimizer(self):
        loader = DataLoader(dataset(), batch_size=4)
        for make in (
            sgd(0.1, momentum=0.9, nesterov=True),
            torch.optim.RMSprop,
            lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1),
        ):
            posterior = point()
            before = copied(posterior)
            fit(posterior, loader, optimizer=make)
            assert any(not torch.equal(v, before[n]) for n, v in posterior.state_dict().items())

    def test_default_is_adam_at_the_given_rate(self):
        network, loader = nn.Linear(4, 3), DataLoader(dataset(), batch_size=4)
        first, second = point(network), point(network)
        history = fit(first, loader, 2, learning_rate=0.03)
        fit(second, loader, 2, optimizer=lambda p: torch.optim.Adam(p, lr=0.03))
        # One pass over the weights or several: single precision rounds differently.
        plain = second.state_dict()
        for name, value in first.state_dict().items():
            torch.testing.assert_close(value, plain[name], rtol=1e-5, atol=1e-6)
        assert history[0].learning_rate == 0.03

    def test_schedule_by_epoch(self):
        history = fit(
            point(),
            DataLoader(dataset(), batch_size=4),
            3,
            optimizer=sgd(0.8),
            scheduler=lambda optimizer: lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
        )
        assert [record.learning_rate for record in history] == pytest.approx([0.8, 0.4, 0.2])

    def test_schedule_by_step(self):
        history = fit(
            point(),
            DataLoader(dataset(), batch_size=4),
            2,
            optimizer=sgd(0.8),
            scheduler=lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.5),
            schedule_each_step=True,
        )
        # At an epoch's end, after three steps and after six.
        expected = [0.8 / 2**3, 0.8 / 2**6]
        assert [record.learning_rate for record in history] == pytest.approx(expected)

    @pytest.mark.parametrize("validate", [True, False])
    def test_schedule_by_plateau(self, validate):
        def plateau(optimizer):
            return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)

        # Wrong labels: the training loss falls in every epoch, and the validation NLL rises.
        network, wrong, right = worsening()
        history = fit(
            point(network),
            wrong,
            4,
            learning_rate=1e-2,
            scheduler=plateau,
            validation=right if validate else None,
        )
        rates = [record.learning_rate for record in history]
        expected = [1e-2, 1e-2, 5e-3, 2.5e-3] if validate else [1e-2] * 4
        assert rates == pytest.approx(expected)

    def test_a_plateau_is_judged_by_epochs(self):
        with pytest.raises(ValueError, match="leave out schedule_each_step"):
            fit(
                point(),
                DataLoader(dataset()),
                scheduler=lr_scheduler.ReduceLROnPlateau,
                schedule_each_step=True,
            )

    def test_gradient_clipping(self):
        network, batch = nn.Linear(4, 3), dataset()[:12]
        states, norms = [], []
        for clip in (None, 0.01, 1e6):
            posterior = point(network)
            (record,) = fit(posterior, [batch], num_data=12, optimizer=sgd(1.0), gradient_clip=clip)
            norms.append(record.gradient_norm)
            moved = [
                v[0] - dict(network.named_parameters())[n] for n, v in posterior.sample(1).items()
            ]
            states.append(torch.cat([one.flatten() for one in moved]).detach())
        assert norms == pytest.approx([norms[0]] * 3)  # measured before clipping
        assert states[0].norm().item() == pytest.approx(norms[0], rel=1e-4)
        assert states[1].norm().item() == pytest.approx(0.01, rel=1e-3)
        torch.testing.assert_close(states[1] * norms[0] / 0.01, states[0], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(states[2], states[0])


class TestHelperNetworks:
    """The critic of the adversarial divergence, trained by the same optimiser."""

    class Counting(SGD):
        steps = 0

        def step(self, closure=None):
            type(self).steps += 1
            return super().step(closure)

    def count(self, posterior, epochs, **options):
        self.Counting.steps = 0
        loader = DataLoader(dataset(), batch_size=3)
        history = fit(
            posterior, loader, epochs, optimizer=lambda p: self.Counting(p, lr=1e-3), **options
        )
        return self.Counting.steps, history

    def test_optimizer_steps(self, tmp_path):
        divergence = bbh.divergences.Adversarial(hidden=(8,), steps=3, pretraining=7)
        options = {"checkpoint": tmp_path / "checkpoint", "resume": True}
        steps, history = self.count(hypernet(divergence=divergence), 2, **options)
        # 7 before training; then 4 batches an epoch, each with 2 for the critic and 1 for all.
        assert steps == 7 + 2 * 4 * 3
        assert history[-1].step == 8
        assert all(record.auxiliary > 0 for record in history)
        resumed, history = self.count(hypernet(divergence=divergence), 3, **options)
        assert resumed == 4 * 3
        assert history[-1].step == 12

    def test_one_step_each_without_a_helper(self):
        steps, _ = self.count(hypernet(), 2)
        assert steps == 2 * 4

    def test_pretraining_moves_the_critic_alone(self):
        class Stop(Exception):
            pass

        class Never:
            def __iter__(self):
                raise Stop

        posterior = hypernet(divergence=bbh.divergences.Adversarial(hidden=(8,), pretraining=3))
        before = copied(posterior)
        with pytest.raises(Stop):
            fit(posterior, Never(), num_data=12)
        moved = {n for n, v in posterior.state_dict().items() if not torch.equal(v, before[n])}
        critic = {f"weights.helper.{n}" for n, _ in posterior.weights.helper.named_parameters()}
        assert moved == critic

    def test_helper_step_is_the_gradient_of_its_own_loss(self):
        """With the noise fixed, one pretraining step is plain gradient descent on the critic."""
        divergence = bbh.divergences.Adversarial(hidden=(8,), steps=1, pretraining=1)
        posterior = hypernet(divergence=divergence)
        torch.manual_seed(2)
        with torch.no_grad():
            samples = posterior.weights.train().sample(10)
        auxiliary = posterior.weights.cost(samples, posterior.prior).auxiliary
        helper = posterior.weights.helper
        gradients = torch.autograd.grad(auxiliary, list(helper.parameters()))
        expected = [
            p.detach() - 0.1 * g for p, g in zip(helper.parameters(), gradients, strict=True)
        ]
        torch.manual_seed(2)

        class Never:
            def __iter__(self):
                return iter(())

        with pytest.raises(ValueError, match="empty"):
            fit(posterior, Never(), num_data=12, optimizer=sgd(0.1))
        for value, known in zip(helper.parameters(), expected, strict=True):
            torch.testing.assert_close(value.detach(), known)


class TestAveraging:
    def train(self, epochs, **options):
        torch.manual_seed(0)
        posterior = point()
        fit(posterior, DataLoader(dataset(), 4), epochs, **options)
        return posterior.state_dict()

    def test_the_mean_of_the_last_epochs(self, tmp_path):
        after = [self.train(epochs) for epochs in (2, 3, 4)]
        averaged = self.train(4, average_epochs=3)
        for name, value in averaged.items():
            mean = torch.stack([state[name] for state in after]).mean(0)
            torch.testing.assert_close(value, mean)

    def test_one_epoch_is_the_last(self):
        assert_same_state(self.train(3), self.train(3, average_epochs=1))

    def test_goes_on_where_it_was(self, tmp_path):
        path = tmp_path / "checkpoint"
        whole = self.train(4, average_epochs=3)
        # The same run, broken off after three epochs: their average is of two.
        torch.manual_seed(0)
        posterior = point()
        with pytest.raises(KeyboardInterrupt):
            fit(posterior, Interrupted(4, after=3), 4, average_epochs=3, checkpoint=path)
        resumed = self.train(4, average_epochs=3, checkpoint=path, resume=True)
        assert_same_state(whole, resumed)

    @pytest.mark.parametrize("before", [0, 2])
    def test_a_mean_of_other_epochs_is_not_taken(self, before, tmp_path):
        path = tmp_path / "checkpoint"
        self.train(4, average_epochs=before, checkpoint=path)
        # Of epochs 4 to 6 the first is gone, or is in a mean with the third.
        with pytest.raises(CheckpointError, match="has 4 epochs, and not the mean"):
            self.train(6, average_epochs=3, checkpoint=path, resume=True)
        states = [self.train(epochs) for epochs in (5, 6)]
        resumed = self.train(6, average_epochs=2, checkpoint=path, resume=True)
        for name, value in resumed.items():
            mean = torch.stack([state[name] for state in states]).mean(0)
            torch.testing.assert_close(value, mean)

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"average_epochs": 3}, "there are 2 epochs"),
            ({"average_epochs": -1}, "0 epochs or more"),
            (
                {"average_epochs": 1, "patience": 1, "validation": [0]},
                "choose one",
            ),
        ],
    )
    def test_what_cannot_be(self, options, problem):
        with pytest.raises(ValueError, match=problem):
            fit(point(), DataLoader(dataset(), 4), 2, **options)


class Interrupted(DataLoader):
    """A loader that is interrupted after some epochs."""

    def __init__(self, batch_size, after):
        super().__init__(dataset(), batch_size)
        self.left = after

    def __iter__(self):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return super().__iter__()
