"""fit: what it minimises, when it stops, and what it leaves behind."""

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, lr_scheduler
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import bbh
from bbh.batches import num_data_of
from bbh.checkpoints import CheckpointError, random_state, restore_random_state
from bbh.generators import Sliced
from scenarios import BatchNormNet, LSTMNet, mlp, printed_number

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


def fit(posterior, loader, epochs=1, **options):
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


class TestNumData:
    class Stream(IterableDataset):
        def __iter__(self):
            yield from dataset()

    class Unsized(Dataset):
        def __getitem__(self, index):
            return dataset()[index]

    def test_taken_from_the_dataset_and_never_from_batches(self):
        whole = dataset()
        assert num_data_of(DataLoader(whole, batch_size=5)) == 12
        assert num_data_of(DataLoader(whole, batch_size=5, shuffle=True, drop_last=True)) == 12
        assert num_data_of(DataLoader(Subset(whole, range(7)), batch_size=2)) == 7
        assert num_data_of(DataLoader(whole, sampler=SubsetRandomSampler(range(5)))) == 5
        # An epoch of a few draws is still about all twelve examples.
        assert num_data_of(DataLoader(whole, sampler=RandomSampler(whole, num_samples=3))) == 12

    @pytest.mark.parametrize(
        ("loader", "culprit"),
        [
            (DataLoader(Stream()), "has no length"),
            (DataLoader(Unsized(), sampler=range(3)), "has no length"),
            ([next(iter(DataLoader(dataset(), batch_size=4)))], "a list"),
            (DataLoader(dataset(), sampler=WeightedRandomSampler([1.0] * 12, 12)), "Weighted"),
            (
                DataLoader(
                    dataset(), batch_sampler=BatchSampler(SequentialSampler(range(6)), 2, False)
                ),
                "BatchSampler",
            ),
            (DataLoader(dataset(), batch_size=None), "batch_size=None"),
        ],
        ids=["stream", "unsized", "list", "weighted", "batch sampler", "whole batches"],
    )
    def test_refused_where_unknown_and_accepted_when_given(self, loader, culprit):
        with pytest.raises(ValueError, match=rf"{culprit}.*Pass num_data="):
            fit(point(), loader)
        if culprit == "batch_size=None":
            loader = DataLoader([dataset()[:4]], batch_size=None)
        if not isinstance(getattr(loader, "dataset", None), self.Unsized | self.Stream):
            assert len(fit(point(), loader, num_data=12)) == 1

    def test_a_stream_trains_with_a_given_number(self):
        history = fit(point(), DataLoader(self.Stream(), batch_size=5), 2, num_data=12)
        assert [record.step for record in history] == [3, 6]

    @pytest.mark.parametrize("number", [0, -3])
    def test_nonsense(self, number):
        with pytest.raises(ValueError, match="num_data"):
            fit(point(), DataLoader(dataset()), num_data=number)


class TestObjective:
    """Every step by hand: what is minimised is mean NLL + temperature · β/N · complexity."""

    @staticmethod
    def by_hand(network, batches, rate, loss):
        for batch in batches:
            network.zero_grad()
            loss(network, *batch).backward()
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter -= rate * parameter.grad
        return dict(network.named_parameters())

    @pytest.mark.parametrize("batch_size", [3, 4, 12])
    @pytest.mark.parametrize(("beta", "temperature"), [(1.0, 1.0), (0.5, 3.0)])
    def test_weight_of_the_complexity_is_beta_over_num_data(self, batch_size, beta, temperature):
        network, loader = nn.Linear(4, 3), DataLoader(dataset(), batch_size=batch_size)
        scale = 0.2
        posterior = point(network, prior=bbh.priors.Normal(scale))

        def loss(module, inputs, targets):
            squares = sum(p.square().sum() for p in module.parameters()) / (2 * scale**2)
            # N = 12 whatever the batch.
            return F.cross_entropy(module(inputs), targets) + temperature * beta / 12 * squares

        fit(
            posterior,
            loader,
            optimizer=sgd(0.1),
            beta=beta,
            temperature=temperature,
        )
        expected = self.by_hand(network, loader, 0.1, loss)
        for name, value in posterior.sample(1).items():
            torch.testing.assert_close(value[0], expected[name])

    def test_record_of_an_epoch(self):
        network, loader = nn.Linear(4, 3), DataLoader(dataset(), batch_size=4)
        (record,) = fit(point(network), loader, optimizer=sgd(0.0))
        losses = [F.cross_entropy(network(inputs), targets).item() for inputs, targets in loader]
        assert record.nll == pytest.approx(sum(losses) / 3)
        squares = sum(p.square().sum().item() for p in network.parameters())
        complexity = 0.5 * squares + 15 / 2 * math.log(2 * math.pi)
        assert record.complexity == pytest.approx(complexity)
        assert record.total == pytest.approx(record.nll + complexity / 12)
        assert (record.epoch, record.step, record.learning_rate) == (1, 3, 0.0)
        assert record.auxiliary == 0
        assert record.validation == {}

    def test_weighted_examples(self):
        network = nn.Linear(4, 3)
        inputs, targets = dataset()[:6]
        weights = torch.tensor([2.0, 0.0, 1.0, 0.5, 1.0, 3.0])

        def loss(module, inputs, targets, weights):
            each = F.cross_entropy(module(inputs), targets, reduction="none")
            penalty = sum(p.square().sum() for p in module.parameters()) / 2
            return (weights * each).sum() / 6 + penalty / 6

        for batch in (
            (inputs, targets, weights),
            {"input": inputs, "targets": targets, "weights": weights},
        ):
            posterior = point(network)
            fit(posterior, [batch], num_data=6, optimizer=sgd(0.1))
            twin = nn.Linear(4, 3)
            twin.load_state_dict(network.state_dict())
            expected = self.by_hand(twin, [(inputs, targets, weights)], 0.1, loss)
            for name, value in posterior.sample(1).items():
                torch.testing.assert_close(value[0], expected[name])

    def test_weight_two_is_the_example_seen_twice(self):
        network = nn.Linear(4, 3)
        inputs, targets = dataset()[:3]
        twice = [(torch.cat([inputs, inputs[:1]]), torch.cat([targets, targets[:1]]))]
        weighted = [(inputs, targets, torch.tensor([2.0, 1.0, 1.0]))]
        first, second = point(network), point(network)
        # The mean over three weighted examples, and over four: the sums are the same.
        fit(first, weighted, num_data=3, optimizer=sgd(0.3), temperature=1e-9)
        fit(second, twice, num_data=4, optimizer=sgd(0.3 * 4 / 3), temperature=1e-9)
        for name, value in first.sample(1).items():
            torch.testing.assert_close(value, second.sample(1)[name])

    def test_weighted_classes(self):
        network, (inputs, targets) = nn.Linear(4, 3), dataset()[:6]
        weights = (0.2, 1.0, 5.0)
        posterior = point(network, Categorical(weights))
        (record,) = fit(posterior, [(inputs, targets)], num_data=6)
        each = F.cross_entropy(network(inputs), targets, reduction="none")
        expected = (torch.tensor(weights)[targets] * each).mean().item()
        assert record.nll == pytest.approx(expected)

    def test_annealing_by_the_fraction_of_an_epoch(self):
        loader = DataLoader(dataset(), batch_size=4)
        history = fit(point(), loader, 3, beta=bbh.Linear(0, 2))
        # In the last of three steps: 2/3, 5/3 and 8/3 epochs, over two.
        assert [record.beta for record in history] == pytest.approx([1 / 3, 5 / 6, 1.0])

        class Endless:
            def __iter__(self):
                return iter(loader)

        history = fit(point(), Endless(), 3, num_data=12, beta=bbh.Linear(0, 2))
        assert [record.beta for record in history] == pytest.approx([0.0, 0.5, 1.0])

    @pytest.mark.parametrize(("number", "draws"), [(None, 5), (1, 1), (3, 3)])
    def test_likelihood_samples(self, number, draws):
        posterior = hypernet()
        forward, seen = posterior.forward, []

        def spy(inputs, samples, **settings):
            seen.append(len(samples["0.weight"]))
            return forward(inputs, samples, **settings)

        posterior.forward = spy
        history = fit(posterior, DataLoader(dataset(), 4), num_samples=5, likelihood_samples=number)
        assert seen == [draws] * 3
        assert math.isfinite(history[0].total)

    def test_dictionaries_with_labels(self):
        class Dictionaries(Dataset):
            def __len__(self):
                return NUM_DATA

            def __getitem__(self, index):
                inputs, target = dataset()[index]
                return {"input": inputs, "labels": target}

        network = nn.Linear(4, 3)
        first, second = point(network), point(network)
        fit(first, DataLoader(Dictionaries(), batch_size=4), optimizer=sgd(0.1))
        fit(second, DataLoader(dataset(), batch_size=4), optimizer=sgd(0.1))
        assert_same_state(first.state_dict(), second.state_dict())

    def test_batches_it_cannot_understand(self):
        inputs, targets = dataset()[:4]
        with pytest.raises(ValueError, match="targets"):
            fit(point(), [{"input": inputs}], num_data=4)
        with pytest.raises(ValueError, match="inputs, targets"):
            fit(point(), [inputs], num_data=4)
        with pytest.raises(ValueError, match="inputs, targets"):
            fit(point(), [(inputs, inputs, targets, targets)], num_data=4)

    def test_empty_loader_and_no_epochs(self):
        with pytest.raises(ValueError, match="empty"):
            fit(point(), [], num_data=4)
        with pytest.raises(ValueError, match="epochs=0"):
            fit(point(), DataLoader(dataset()), 0)


class TestAdversarialTraining:
    def test_by_hand_on_a_linear_ensemble(self):
        """∇ₓ of the cross-entropy of softmax(Wx + b) is Wᵀ(softmax − onehot)."""
        epsilon, rate = 0.3, 0.1
        posterior = bbh.methods.deep_ensemble(
            nn.Linear(4, 3),
            Categorical(),
            num_members=2,
            adversarial=bbh.AdversarialTraining(epsilon),
        )
        inputs, targets = dataset()[:6]
        expected = {"weight": [], "bias": []}
        clean_and_moved = []
        for index in range(2):
            weight = posterior.sample(2)["weight"][index].detach().clone().requires_grad_()
            bias = posterior.sample(2)["bias"][index].detach().clone().requires_grad_()
            with torch.no_grad():
                residual = F.linear(inputs, weight, bias).softmax(-1) - F.one_hot(targets, 3)
                moved = inputs + epsilon * (residual @ weight).sign()
            nll = 0.5 * F.cross_entropy(F.linear(inputs, weight, bias), targets)
            nll = nll + 0.5 * F.cross_entropy(F.linear(moved, weight, bias), targets)
            clean_and_moved.append(nll.item())
            penalty = (weight.square().sum() + bias.square().sum()) / 2 / 6
            # The loss is the members' mean.
            ((nll + penalty) / 2).backward()
            expected["weight"].append((weight - rate * weight.grad).detach())
            expected["bias"].append((bias - rate * bias.grad).detach())
        (record,) = fit(posterior, [(inputs, targets)], num_data=6, optimizer=sgd(rate))
        assert record.nll == pytest.approx(sum(clean_and_moved) / 2)
        for name, values in expected.items():
            torch.testing.assert_close(posterior.sample(2)[name], torch.stack(values))

    @pytest.mark.parametrize("weight", [0.0, 1.0])
    def test_share_of_the_perturbed_examples(self, weight):
        network, (inputs, targets) = nn.Linear(4, 3), dataset()[:6]
        posterior = bbh.methods.deep_ensemble(
            network,
            Categorical(),
            num_members=1,
            adversarial=bbh.AdversarialTraining(0.3, weight=weight),
        )
        (record,) = fit(posterior, [(inputs, targets)], num_data=6, optimizer=sgd(0.0))
        clean = F.cross_entropy(network(inputs), targets).item()
        if weight == 0:
            assert record.nll == pytest.approx(clean)
        else:
            assert record.nll > clean + 0.01

    def test_refused_for_tokens(self):
        posterior = bbh.methods.deep_ensemble(
            LSTMNet(), Categorical(), num_members=2, adversarial=bbh.AdversarialTraining()
        )
        batch = torch.randint(0, 3, (4, 5)), torch.zeros(4, dtype=torch.long)
        with pytest.raises(TypeError, match=r"floating-point tensor.*adversarial=None"):
            fit(posterior, [batch], num_data=4)


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
        network, wrong, right = TestEarlyStopping().loaders()
        history = fit(
            point(network),
            wrong,
            4,
            learning_rate=1e-2,
            scheduler=plateau,
            validation_loader=right if validate else None,
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


class TestEarlyStopping:
    def loaders(self):
        """Validation data with clean labels, training data with shifted ones."""
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

    def test_stops_and_restores_when_validation_only_worsens(self):
        network, wrong, right = self.loaders()
        posterior = point(network)
        history = fit(posterior, wrong, 20, validation_loader=right, patience=3)
        assert history.best_epoch == 1
        assert len(history) == 4
        nlls = [record.validation["nll"] for record in history]
        assert nlls == sorted(nlls)
        only_one = point(network)
        fit(only_one, wrong, 1)
        assert_same_state(posterior.state_dict(), only_one.state_dict())
        assert bbh.evaluate(posterior, right) == history[0].validation

    def test_restores_the_best_of_a_rise_and_a_fall(self):
        network, _, right = self.loaders()
        posterior = point(network)

        def breaks_in_the_fourth_epoch(optimizer):
            return lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 if epoch < 3 else 1e5)

        options = {"optimizer": sgd(0.01), "scheduler": breaks_in_the_fourth_epoch}
        history = fit(posterior, right, 20, validation_loader=right, patience=2, **options)
        assert history.best_epoch == 3
        assert len(history) == 5
        assert bbh.evaluate(posterior, right) == history[2].validation
        assert history[4].validation["nll"] > history[2].validation["nll"]

    def test_restores_batch_norm_statistics_too(self):
        inputs, targets = torch.randn(12, 1, 6, 6), torch.randint(0, 3, (12,))
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=6)
        posterior = point(BatchNormNet())
        history = fit(
            posterior, loader, 10, validation_loader=loader, patience=2, optimizer=sgd(30.0)
        )
        best = history[history.best_epoch - 1]
        assert bbh.evaluate(posterior, loader) == best.validation
        assert history.best_epoch < len(history)

    def test_the_last_state_stays_without_patience(self):
        network, wrong, right = self.loaders()
        first, second = point(network), point(network)
        history = fit(first, wrong, 4, validation_loader=right)
        fit(second, wrong, 4)
        assert history.best_epoch is None
        assert len(history) == 4
        assert_same_state(first.state_dict(), second.state_dict())

    def test_the_best_state_is_restored_when_epochs_run_out(self):
        network, wrong, right = self.loaders()
        posterior = point(network)
        history = fit(posterior, wrong, 3, validation_loader=right, patience=50)
        assert history.best_epoch == 1
        assert bbh.evaluate(posterior, right) == history[0].validation

    def test_patience_needs_validation_data(self):
        with pytest.raises(ValueError, match="validation_loader"):
            fit(point(), DataLoader(dataset()), patience=3)


class BrokenPrior(bbh.priors.ElementwisePrior):
    """Infinitely surprised by every weight."""

    def distribution(self, like):
        return torch.distributions.Normal(like.new_tensor(0.0), like.new_tensor(1.0))

    def log_prob(self, name, values):
        return values * -math.inf


class RootOfZero(nn.Module):
    """Finite outputs, and a gradient that is not."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.zero = nn.Parameter(torch.zeros(3))

    def forward(self, inputs):
        return self.layer(inputs) + self.zero.square().sqrt()


class TestDivergence:
    def good_and_bad(self, value=math.nan, shape=(4,)):
        good = torch.randn(5, *shape), torch.randint(0, 3, (5,))
        bad = torch.full((5, *shape), value), good[1]
        return good, bad

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    @pytest.mark.parametrize("make", [point, hypernet], ids=["map", "hypernet"])
    def test_likelihood(self, make, value):
        good, bad = self.good_and_bad(value)
        network = mlp()
        torch.manual_seed(3)
        posterior = make(network)
        torch.manual_seed(4)
        with pytest.raises(
            bbh.DivergedError, match=r"step 2: the nll is .*learning rate"
        ) as caught:
            fit(posterior, [good, bad, good], 3, num_data=5)
        assert caught.value.term == "nll"
        assert isinstance(caught.value, FloatingPointError)
        assert len(caught.value.history) == 0
        torch.manual_seed(3)
        twin = make(network)
        torch.manual_seed(4)
        fit(twin, [good], num_data=5)
        assert_same_state(posterior.state_dict(), twin.state_dict())

    @pytest.mark.parametrize("members", [1, 2])
    def test_batch_norm_keeps_its_statistics(self, members):
        """The failing forward pass has already written NaN into the running statistics."""
        good, bad = self.good_and_bad(shape=(1, 6, 6))
        torch.manual_seed(3)
        posterior = bbh.methods.deep_ensemble(BatchNormNet(), Categorical(), num_members=members)
        twin = bbh.methods.deep_ensemble(BatchNormNet(), Categorical(), num_members=members)
        twin.load_state_dict(posterior.state_dict())
        fit(twin, [good], num_data=5)
        with pytest.raises(bbh.DivergedError):
            fit(posterior, [good, bad], num_data=5)
        assert_same_state(posterior.state_dict(), twin.state_dict())

    def test_complexity(self):
        posterior = point(prior=BrokenPrior())
        before = copied(posterior)
        with pytest.raises(bbh.DivergedError, match="the complexity is") as caught:
            fit(posterior, DataLoader(dataset(), batch_size=4))
        assert caught.value.term == "complexity"
        assert_same_state(posterior.state_dict(), before)

    def test_complexity_of_a_broken_parameter(self):
        posterior = bbh.methods.bayes_by_backprop(nn.Linear(4, 3), Categorical())
        with torch.no_grad():
            next(iter(posterior.weights.log_scale.parameters()))[0] = -math.inf  # scale zero
        with pytest.raises(bbh.DivergedError, match="the complexity is inf"):
            fit(posterior, DataLoader(dataset(), batch_size=4))

    def test_gradient(self):
        posterior = point(RootOfZero())
        before = copied(posterior)
        with pytest.raises(bbh.DivergedError, match="step 1: the gradient_norm is nan") as caught:
            fit(posterior, DataLoader(dataset(), batch_size=4), gradient_clip=1.0)
        assert caught.value.term == "gradient_norm"
        assert_same_state(posterior.state_dict(), before)

    def test_auxiliary(self):
        posterior = hypernet(divergence=bbh.divergences.Adversarial(pretraining=1))
        with torch.no_grad():
            next(posterior.weights.helper.parameters()).fill_(math.nan)
        before = copied(posterior)
        with pytest.raises(bbh.DivergedError, match="auxiliary") as caught:
            fit(posterior, DataLoader(dataset(), batch_size=4))
        assert caught.value.term == "auxiliary"
        after = posterior.state_dict()
        assert all(torch.equal(after[n], v) or v.isnan().any() for n, v in before.items())

    def test_records_and_checkpoint_of_the_good_epochs_stay(self, tmp_path):
        class BreaksLater:
            epochs = 0

            def __iter__(self):
                self.epochs += 1
                inputs, targets = dataset()[:12]
                yield inputs * (math.nan if self.epochs == 3 else 1.0), targets

        posterior = point()
        with pytest.raises(bbh.DivergedError) as caught:
            fit(posterior, BreaksLater(), 5, num_data=12, checkpoint=tmp_path / "checkpoint")
        assert [record.epoch for record in caught.value.history] == [1, 2]
        stored = torch.load(tmp_path / "checkpoint", weights_only=True)
        assert_same_state(posterior.state_dict(), stored["posterior"])


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
            "bbh.training.checkpoints.write", lambda path, state: written.append(state["step"])
        )
        loader = DataLoader(dataset(), batch_size=4)
        for seconds in (0.0, 3600.0):
            fit(point(), loader, 3, checkpoint=tmp_path / "file", checkpoint_seconds=seconds)
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
            validation_loader=DataLoader(dataset(), batch_size=6),
            patience=patience,
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

    def test_pythons_random_numbers_in_the_dataset(self, tmp_path):
        # In a process of its own: the checks of types that tests switch on use them as well.
        script = (
            "import sys; from pathlib import Path; from test_training import TestCheckpoints; "
            "TestCheckpoints().interrupt_twice(Path(sys.argv[1]), python=True)"
        )
        command = [sys.executable, "-c", script, str(tmp_path / "checkpoint")]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
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
        network, wrong, right = TestEarlyStopping().loaders()
        options = {"validation_loader": right, "patience": 4, "checkpoint": tmp_path / "c"}
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

    @pytest.mark.parametrize(
        "content",
        [{"format": 1}, {"format": 99}, {"epoch": 3}, [1, 2], torch.ones(3)],
        ids=["bare", "newer", "another program's", "list", "tensor"],
    )
    def test_foreign(self, tmp_path, content):
        torch.save(content, tmp_path / "checkpoint")
        with pytest.raises(CheckpointError, match="checkpoint"):
            fit(point(), DataLoader(dataset()), checkpoint=tmp_path / "checkpoint", resume=True)

    def test_code_in_a_checkpoint_is_not_run(self, tmp_path):
        marker = tmp_path / "executed"

        class Exploit:
            def __reduce__(self):
                return Path.touch, (marker,)

        torch.save({"format": 1, "posterior": Exploit()}, tmp_path / "checkpoint")
        with pytest.raises(CheckpointError):
            fit(point(), DataLoader(dataset()), checkpoint=tmp_path / "checkpoint", resume=True)
        assert not marker.exists()

    @pytest.mark.parametrize(
        "other",
        [
            {"posterior": mlp},
            {"posterior": lambda: nn.Linear(4, 3, bias=False)},
            {"optimizer": sgd(0.1)},
            {"scheduler": lambda optimizer: lr_scheduler.StepLR(optimizer, 1)},
        ],
        ids=["network", "fewer tensors", "optimizer", "scheduler"],
    )
    def test_of_another_run(self, tmp_path, other):
        path, loader = tmp_path / "checkpoint", DataLoader(dataset(), batch_size=4)
        fit(point(), loader, checkpoint=path)
        options = dict(other)
        posterior = point(options.pop("posterior", lambda: None)())
        with pytest.raises(CheckpointError, match="another posterior, optimizer or loader"):
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

        def half(state, target):
            save(state, target)
            Path(target).write_bytes(Path(target).read_bytes()[:50])
            raise KeyboardInterrupt

        monkeypatch.setattr(torch, "save", half)
        with pytest.raises(KeyboardInterrupt):
            fit(point(), DataLoader(dataset()), 2, checkpoint=path, resume=True)
        assert path.read_bytes() == before
        assert [one.name for one in tmp_path.iterdir()] == ["checkpoint"]

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
            samples = posterior.weights.train().sample(5)
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


class TestRecords:
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_tensorboard(self, tmp_path):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        loader = DataLoader(dataset(), batch_size=4)
        history = fit(point(), loader, 3, validation_loader=loader, log_dir=tmp_path)
        events = EventAccumulator(str(tmp_path)).Reload()
        assert {"train/total", "train/nll", "train/complexity", "validation/nll"} <= set(
            events.Tags()["scalars"]
        )
        for tag, wanted in (
            ("train/total", [record.total for record in history]),
            ("validation/nll", [record.validation["nll"] for record in history]),
        ):
            scalars = events.Scalars(tag)
            assert [one.step for one in scalars] == [1, 2, 3]
            assert [one.value for one in scalars] == pytest.approx(wanted)

    def test_history_as_json(self, tmp_path):
        loader = DataLoader(dataset(), batch_size=4)
        history = fit(point(), loader, 3, validation_loader=loader)
        history.save(tmp_path / "history.json")
        read = json.loads((tmp_path / "history.json").read_text())
        assert read == {"best_epoch": None, "epochs": history.to_dicts()}
        assert [record["epoch"] for record in read["epochs"]] == [1, 2, 3]
        assert read["epochs"][1]["validation"]["nll"] == history[1].validation["nll"]
        assert history[-1] is history.records[2]
        assert [record.epoch for record in history[1:]] == [2, 3]
        assert len(list(history)) == len(history) == 3

    def test_progress_bar(self, capsys):
        loader = DataLoader(dataset(), batch_size=4)
        fit(point(), loader, 2, validation_loader=loader, progress=True)
        shown = capsys.readouterr().out
        assert "nll" in shown
        assert "2/2" in shown
        fit(point(), loader, 2)
        assert capsys.readouterr().out == ""

    def test_posterior_is_left_ready_to_predict(self):
        posterior = bbh.methods.bayes_by_backprop(
            mlp(), Categorical(), sampling=bbh.weights.Sampling.LOCAL
        )
        fit(posterior, DataLoader(dataset(), batch_size=4))
        assert not posterior.training
        assert not posterior.network.training

    def test_a_second_call_goes_on_from_the_first(self):
        network, loader = nn.Linear(4, 3), DataLoader(dataset(), batch_size=4)
        twice, once = point(network), point(network)
        fit(twice, loader, 1, optimizer=sgd(0.1))
        fit(twice, loader, 2, optimizer=sgd(0.1))
        fit(once, loader, 3, optimizer=sgd(0.1))
        assert_same_state(twice.state_dict(), once.state_dict())

    def test_training_learns(self):
        """Separable classes, every method's default settings: the error falls to zero."""
        inputs = torch.randn(60, 4)
        loader = DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(-1)), 20, shuffle=True)
        posterior = hypernet()
        first, *_, last = fit(posterior, loader, 40, learning_rate=1e-2)
        assert last.nll < 0.3 * first.nll
        assert bbh.evaluate(posterior, loader, 20)["error"] < 10


class TestPrecision:
    @pytest.mark.parametrize("make", [point, hypernet], ids=["map", "hypernet"])
    def test_bfloat16(self, make):
        fabric = Fabric(precision="bf16-mixed", accelerator="cpu", devices=1)
        network = mlp()
        torch.manual_seed(3)
        posterior = make(network)
        torch.manual_seed(3)
        history = fit(
            posterior,
            DataLoader(dataset(), 4),
            2,
            fabric=fabric,
            validation_loader=DataLoader(dataset(), 4),
        )
        assert all(value.dtype == torch.float32 for value in posterior.parameters())
        torch.manual_seed(3)
        exact = make(network)
        torch.manual_seed(3)
        expected = fit(exact, DataLoader(dataset(), 4), 2)
        # Eight bits of mantissa: near the exact run, and not equal to it.
        assert history[-1].nll == pytest.approx(expected[-1].nll, rel=0.05)
        assert history[-1].nll != expected[-1].nll

    def test_targets_are_not_rounded(self):
        """1000.5 has no bfloat16: its neighbours are 1000 and 1004."""
        network = nn.Linear(1, 1)
        with torch.no_grad():
            network.weight.zero_()
            network.bias.zero_()
        fabric = Fabric(precision="bf16-mixed", accelerator="cpu", devices=1)
        posterior = point(network, bbh.likelihoods.Gaussian(1.0))
        batch = torch.ones(2, 1), torch.full((2, 1), 1000.5)
        (record,) = fit(posterior, [batch], num_data=2, fabric=fabric)
        expected = 0.5 * 1000.5**2 + 0.5 * math.log(2 * math.pi)
        assert record.nll == pytest.approx(expected, rel=1e-4)

    def half(self, scale):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        precision = MixedPrecision("16-mixed", "cpu", scaler=scaler)
        return Fabric(accelerator="cpu", devices=1, plugins=[precision])

    def test_float16_gradients_are_measured_and_clipped_without_the_loss_scale(self):
        network, batch = mlp(), dataset()[:12]
        records, states = [], []
        for fabric in (self.half(1024.0), None):
            posterior = point(network)
            options = {"optimizer": sgd(1.0), "gradient_clip": 0.05, "fabric": fabric}
            records += fit(posterior, [batch], num_data=12, **options)
            states.append(torch.cat([v.detach().flatten() for v in posterior.parameters()]))
        assert records[0].gradient_norm == pytest.approx(records[1].gradient_norm, rel=0.02)
        torch.testing.assert_close(states[0], states[1], rtol=1e-2, atol=2e-3)

    def test_float16_overflow_skips_a_step_instead_of_stopping(self):
        posterior = point(mlp())
        before = copied(posterior)
        history = fit(posterior, [dataset()[:12]], num_data=12, fabric=self.half(2.0**100))
        assert_same_state(posterior.state_dict(), before)
        assert math.isfinite(history[0].gradient_norm)


DISTRIBUTED = """
import sys
import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import bbh

folder, processes = sys.argv[1], int(sys.argv[2])
strategy = "ddp" if processes > 1 else "auto"
fabric = Fabric(accelerator="cpu", devices=processes, strategy=strategy)
fabric.launch()
torch.manual_seed(0)
inputs = torch.randn(12, 4)
network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
data = TensorDataset(inputs, torch.arange(12) % 3)
loader = DataLoader(data, batch_size=6 // processes)
posterior = bbh.methods.maximum_a_posteriori(network, bbh.likelihoods.Categorical())
history = bbh.fit(
    posterior,
    loader,
    epochs=3,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.3),
    validation_loader=DataLoader(data, batch_size=12),
    fabric=fabric,
    progress=False,
    checkpoint=f"{folder}/checkpoint{processes}",
    log_dir=f"{folder}/log{processes}",
)
bayesian = bbh.methods.bayes_by_hypernet(
    network, bbh.likelihoods.Categorical(), generator=bbh.generators.Sliced(hidden=(8,))
)
torch.manual_seed(fabric.global_rank)  # other draws on every process
bbh.fit(bayesian, loader, epochs=2, fabric=fabric, progress=False)
torch.save(
    {
        "state": posterior.state_dict(),
        "hypernet": bayesian.state_dict(),
        "steps": [record.step for record in history],
        "nll": history[-1].validation["nll"],
    },
    f"{folder}/result{processes}-{fabric.global_rank}",
)
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_two_processes_train_like_one(tmp_path):
    """Two processes with half a batch each take the very steps of one with whole batches."""
    script = tmp_path / "script.py"
    script.write_text(DISTRIBUTED)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for command in ([*launcher, str(script)], [sys.executable, str(script)]):
        processes = "2" if command[0:2] != [sys.executable, str(script)] else "1"
        done = subprocess.run(
            [*command, str(tmp_path), processes], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr[-2000:]
    first, second, alone = (
        torch.load(tmp_path / f"result{name}") for name in ("2-0", "2-1", "1-0")
    )
    assert_same_state(first["state"], second["state"])
    assert_same_state(first["hypernet"], second["hypernet"])
    assert first["steps"] == second["steps"] == alone["steps"] == [2, 4, 6]
    assert first["nll"] == second["nll"] == pytest.approx(alone["nll"], rel=1e-4)
    for name, value in alone["state"].items():
        torch.testing.assert_close(first["state"][name], value)
    assert len(list((tmp_path / "log2").iterdir())) == 1  # only one process writes


@pytest.mark.slow
def test_layer_wise_lenet_trains_on_a_24_gibibyte_machine():
    """222 million generator parameters with gradient and Adam's moments: 3.3 GiB, and what a
    step needs besides. Half the machine is left to the user."""
    script = """
import resource, torch, bbh
from scenarios import LeNet
posterior = bbh.methods.bayes_by_hypernet(
    LeNet(), bbh.likelihoods.Categorical(), generator=bbh.generators.LayerWise()
)
batch = (torch.rand(100, 1, 28, 28), torch.arange(100) % 10)
history = bbh.fit(posterior, [batch] * 3, epochs=1, num_data=55_000, progress=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""
    assert printed_number(script) < 12


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
            ({"average_epochs": -1}, "there are 2 epochs"),
            (
                {"average_epochs": 1, "patience": 1, "validation_loader": [0]},
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
