"""fit: how the posterior compares with a constant prediction and with the network it began as."""

import json
import logging
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.batches import Batch
from bbh.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian
from bbh.training.passing import Passing
from training.small import assert_same_state, fit, point, without_seconds

# Rates at which nothing is learned, and at which all is unlearned.
STILL, RUINOUS = 1e-12, 3.0


def separable(num_data=200, seed=1):
    """A network that knows the classes of its data, and the data."""
    inputs = torch.randn(num_data, 4, generator=torch.Generator().manual_seed(seed))
    network = nn.Linear(4, 3)
    with torch.no_grad():
        network.weight.copy_(3 * torch.eye(3, 4))
        network.bias.zero_()
    return network, TensorDataset(inputs, inputs[:, :3].argmax(-1))


def nll_of(network, data):
    inputs, targets = data.tensors
    return nn.functional.cross_entropy(network(inputs), targets).item()


class TestConstants:
    """What ignores inputs, in closed form."""

    def test_classes(self):
        training, judged = torch.tensor([0, 0, 0, 0, 1, 2]), torch.tensor([0, 1, 1])
        metrics = Categorical().constant(training, judged)
        assert metrics["nll"] == pytest.approx(-(math.log(5 / 9) + 2 * math.log(2 / 9)) / 3)
        assert metrics["error"] == pytest.approx(200 / 3)
        weighted = Categorical((1.0, 2.0, 4.0)).constant(training, judged)
        assert weighted["nll"] == pytest.approx(-(math.log(5 / 17) + 2 * math.log(4 / 17)) / 3)

    def test_a_class_that_training_lacks(self):
        metrics = Categorical().constant(torch.zeros(98).long(), torch.tensor([1]))
        assert metrics["nll"] == pytest.approx(math.log(100))

    def test_several_positions(self):
        training, judged = torch.tensor([[0, 0], [1, 0]]), torch.tensor([[1, 0]])
        metrics = Categorical().constant(training, judged)
        assert metrics["nll"] == pytest.approx(-(math.log(2 / 6) + math.log(4 / 6)) / 2)

    def test_yes_and_no(self):
        training, judged = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0]])
        metrics = Bernoulli().constant(training, judged)
        assert metrics["nll"] == pytest.approx(-(math.log(3 / 4) + math.log(2 / 4)) / 2)
        weighted = Bernoulli(3.0).constant(training, judged)
        assert weighted["nll"] == pytest.approx(-(math.log(9 / 10) + math.log(2 / 8)) / 2)

    @pytest.mark.parametrize("likelihood", [Gaussian(0.1), HeteroscedasticGaussian()])
    def test_regression_in_the_users_units(self, likelihood):
        training = torch.tensor([[100.0], [300.0]])
        judged = torch.tensor([[200.0], [400.0]])
        metrics = likelihood.constant(training, judged)
        # N(200, 100²) at its mean and two standard deviations away.
        wanted = math.log(100) + 0.5 * math.log(2 * math.pi) + 0.5 * (0 + 4) / 2
        assert metrics["nll"] == pytest.approx(wanted)
        assert metrics["error"] == pytest.approx(math.sqrt(200**2 / 2))

    def test_a_likelihood_of_the_users_own_may_have_none(self):
        class Own(Categorical):
            constant = bbh.likelihoods.Likelihood.constant

        network, data = separable()
        history = fit(point(network, Own()), DataLoader(data, 50))
        assert history.comparison.constant is None
        assert not history.comparison.lost_to_constant
        assert "constant" not in str(history.comparison)


class TestResult:
    def test_numbers_of_validation_data(self, caplog):
        network, data = separable()
        training = TensorDataset(*data[:150])
        validation = TensorDataset(*data[150:])
        history = fit(
            point(network),
            DataLoader(training, 50),
            validation=DataLoader(validation, 20),
            learning_rate=STILL,
        )
        found = history.comparison
        assert (found.data, found.num_examples) == ("validation", 50)
        assert found.start["nll"] == pytest.approx(nll_of(network, validation), rel=1e-5)
        assert found.posterior["nll"] == pytest.approx(found.start["nll"], rel=1e-5)
        expected = Categorical().constant(training.tensors[1], validation.tensors[1])
        assert found.constant == pytest.approx(expected)
        assert not found.lost_to_constant
        assert not found.lost_to_start
        assert caplog.records == []

    def test_training_data_without_validation(self):
        network, data = separable()
        found = fit(point(network), DataLoader(data, 50), learning_rate=STILL).comparison
        assert (found.data, found.num_examples) == ("training", 200)
        assert found.start["nll"] == pytest.approx(nll_of(network, data), rel=1e-5)

    def test_a_ruined_network_is_reported(self, caplog):
        network, data = separable()
        wrong = TensorDataset(data.tensors[0], data.tensors[1].roll(7))
        loader = DataLoader(data, 50)
        with caplog.at_level(logging.WARNING, "bbh"):
            history = fit(
                point(network), DataLoader(wrong, 50), validation=loader, learning_rate=RUINOUS
            )
        found = history.comparison
        assert found.lost_to_constant
        assert found.lost_to_start
        (record,) = caplog.records
        assert "200 validation examples" in record.message
        assert "lost to a constant prediction" in record.message
        assert "and to the network it started from" in record.message
        assert "temperature=0.1" in record.message

    def test_noise_is_no_loss(self):
        """A posterior around the network that moved by nothing but its initial spread."""
        network, data = separable()
        posterior = bbh.methods.bayes_by_backprop(network, Categorical(), initial_scale=0.001)
        loader = DataLoader(data, 50)
        found = fit(posterior, loader, validation=loader, learning_rate=STILL).comparison
        assert found.posterior["nll"] != found.start["nll"]
        assert not found.lost_to_start

    def test_on_training_data_a_smaller_nll_alone_is_overfitting(self):
        network, data = separable()
        wide = bbh.methods.bayes_by_backprop(network, Categorical(), initial_scale=0.3)
        loader = DataLoader(data, 50)
        on_training = fit(wide, loader, learning_rate=STILL).comparison
        on_validation = fit(wide, loader, validation=loader, learning_rate=STILL).comparison
        assert on_validation.posterior == pytest.approx(on_training.posterior)
        assert on_validation.lost_to_start
        assert not on_training.lost_to_start

    def test_statistics_and_dropout_of_the_start(self):
        """The network as it was: its own batch-norm statistics, dropout off."""
        _, data = separable()
        network = nn.Sequential(
            nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)
        )
        posterior = bbh.methods.mc_dropout(network, Categorical())
        found = fit(posterior, DataLoader(data, 50), learning_rate=1e-2).comparison
        assert found.start["nll"] == pytest.approx(nll_of(network.eval(), data), rel=1e-5)
        assert posterior.network[1].training  # still on for predictions
        assert not posterior.network[0].training

    def test_the_best_epoch_is_what_is_judged(self):
        network, data = separable()
        wrong = TensorDataset(data.tensors[0], data.tensors[1].roll(7))
        options = {"validation": DataLoader(data, 50), "patience": 2, "learning_rate": 0.1}
        history = fit(point(network), DataLoader(wrong, 50), 5, **options)
        assert history.best_epoch == 1
        assert history.comparison.posterior == pytest.approx(history[0].validation)

    def test_switched_off(self):
        network, data = separable()
        assert fit(point(network), DataLoader(data, 50), compare=False).comparison is None

    def test_a_posterior_from_a_file_has_no_start(self, tmp_path):
        network, data = separable()
        bbh.save(point(network), tmp_path / "file")
        posterior = bbh.load(tmp_path / "file", nn.Linear(4, 3))
        found = fit(posterior, DataLoader(data, 50)).comparison
        assert found.start is None
        assert found.constant is not None

    def test_what_cannot_be_compared_trains(self):
        class Unmeasured(Categorical):
            def metrics(self, predictive, targets):
                raise NotImplementedError

        network, data = separable()
        history = fit(point(network, Unmeasured()), DataLoader(data, 50))
        assert len(history) == 1
        assert history.comparison is None

    def test_json_and_display(self, tmp_path, capsys):
        network, data = separable()
        history = fit(point(network), DataLoader(data, 50), progress=True)
        history.save(tmp_path / "file")
        read = json.loads((tmp_path / "file").read_text())
        assert read["comparison"]["start"] == history.comparison.start
        assert read["comparison"]["data"] == "training"
        shown = " ".join(capsys.readouterr().out.split())
        assert str(history.comparison) in shown


@pytest.mark.parametrize("validated", [False, True])
def test_training_is_the_same_with_it_and_without(validated):
    def train(**options):
        torch.manual_seed(5)
        network, data = separable()
        posterior = bbh.methods.bayes_by_hypernet(network, Categorical())
        loader = DataLoader(data, 50, shuffle=True)
        if validated:
            options["validation"] = DataLoader(data, 60, shuffle=True)
        history = fit(posterior, loader, 2, **options)
        return posterior, history, torch.rand(1).item()

    first, history, number = train(compare=True)
    second, again, other = train(compare=False)
    assert number == other
    assert_same_state(first.state_dict(), second.state_dict())
    assert without_seconds(history) == without_seconds(again)


def test_resumed_run_compares_as_the_uninterrupted_one(tmp_path):
    def train(epochs, **options):
        torch.manual_seed(5)
        network, data = separable()
        posterior = bbh.methods.bayes_by_hypernet(network, Categorical())
        loader = DataLoader(data, 50, shuffle=True, generator=torch.Generator().manual_seed(1))
        # By default β and the learning rate depend on how many epochs there are in all.
        options |= {"beta": 1.0, "optimizer": lambda parameters: torch.optim.Adam(parameters)}
        return fit(posterior, loader, epochs, **options).comparison

    whole = train(3)
    train(2, checkpoint=tmp_path / "file")
    assert train(3, checkpoint=tmp_path / "file", resume=True) == whole
    assert train(3, checkpoint=tmp_path / "file", resume=True) is None  # nothing was trained


class TestPassing:
    def through(self, passing, batches, length):
        assert list(passing.through(batches, length)) == batches
        return passing

    def test_examples_from_everywhere(self):
        """A sorted loader of 500 batches: the kept ones come from its whole length."""
        batches = [(torch.full((10,), i), torch.full((10,), i)) for i in range(500)]
        passing = self.through(Passing(200, spread=50), batches, 500)
        assert [int(one.targets[0]) for one in passing.batches] == list(range(0, 500, 10))
        assert sum(len(one.targets) for one in passing.batches) == 200

    def test_of_unknown_length(self):
        batches = [(torch.zeros(10), torch.full((10,), i)) for i in range(9)]
        passing = self.through(Passing(20, spread=4), batches, None)
        assert [one.targets.tolist() for one in passing.batches] == [[i] * 5 for i in range(4)]

    def test_copies_of_the_latest_pass(self):
        inputs = torch.zeros(3, 2)
        passing = Passing(10, spread=4)
        for _ in passing.through([({"a": inputs}, torch.ones(3)), (inputs, torch.ones(3))], 2):
            pass
        for _ in passing.through([({"a": inputs}, torch.ones(3))], 1):
            inputs += 1
        (kept,) = passing.batches
        assert torch.equal(kept.inputs["a"], torch.zeros(3, 2))

    def test_groups_hold_every_example_once(self):
        passing = Passing(1000, spread=64)
        sizes = [67, 67, 30, 1]
        batches = [
            (torch.arange(n)[:, None] + 1000 * i, torch.arange(n) + 1000 * i)
            for i, n in enumerate(sizes)
        ]
        list(passing.through(batches, 4))
        groups = passing.in_groups(10)
        kept: list[Batch] = [batch for group in groups for batch in group]
        assert all(torch.equal(batch.inputs[:, 0], batch.targets) for batch in kept)
        found = torch.cat([batch.targets for batch in kept]).sort().values
        assert torch.equal(found, torch.cat([targets for _, targets in batches]).sort().values)
        counts = [sum(len(batch.targets) for batch in group) for group in groups]
        assert max(counts) - min(counts) <= 10
