"""fit: what it minimises."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import bbh
from bbh.batches import num_data_of
from scenarios import LSTMNet
from training.small import (
    NUM_DATA,
    Categorical,
    assert_same_state,
    dataset,
    fit,
    hypernet,
    point,
    sgd,
)


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
        history = fit(
            posterior,
            DataLoader(dataset(), 4),
            num_samples=5,
            likelihood_samples=number,
            compare=False,
        )
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
        with pytest.raises(TypeError, match="inputs, targets"):
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
