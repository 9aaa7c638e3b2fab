"""The temperature that ``fit`` takes by itself: 1, or 2√(N/D) where weights far outnumber data."""

import logging
import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.likelihoods import Categorical
from bbh.objective import own_temperature

methods = bbh.methods


def network(width: int = 40) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))


class FromElsewhere(bbh.priors.Normal):
    """A prior that says what other data have taught."""

    is_learned = True


NUM_WEIGHTS = sum(one.numel() for one in network().parameters())  # 323


def loader(number: int = 20) -> DataLoader:
    data = TensorDataset(torch.randn(number, 4), torch.randint(3, (number,)))
    return DataLoader(data, 10)


@pytest.mark.parametrize(
    ("num_data", "expected"),
    [(10**6, 1.0), (81, 1.0), (80, 1.0), (20, 0.5), (3, 0.19), (1, 0.11)],
)
def test_two_roots_of_data_for_each_weight(num_data, expected):
    posterior = methods.bayes_by_hypernet(network(), Categorical())
    assert own_temperature(posterior, num_data) == expected
    exact = min(1.0, 2 * math.sqrt(num_data / NUM_WEIGHTS))
    assert own_temperature(posterior, num_data) == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize(
    "method",
    [
        methods.maximum_a_posteriori,
        methods.deep_ensemble,
        methods.bayes_by_backprop,
        methods.mc_dropout,
        methods.multiplicative_normalizing_flows,
    ],
)
def test_other_methods_have_the_evidence_lower_bound(method):
    assert own_temperature(method(network(), Categorical()), 1) == 1


def test_only_weights_with_a_distribution_count():
    last = methods.bayes_by_hypernet(network(), Categorical(), bayesian="2")
    assert own_temperature(last, 31) == 1  # 123 weights
    assert own_temperature(last, 30) == 0.99


def test_members_of_a_mixture_count_once():
    mixed = methods.mixture(
        network(), Categorical(), method=methods.bayes_by_hypernet, num_members=3
    )
    assert own_temperature(mixed, 20) == 0.5


def test_points_of_a_mixtures_members_do_not_count():
    mixed = methods.mixture(
        network(), Categorical(), method=methods.bayes_by_hypernet, num_members=2, bayesian="2"
    )
    assert own_temperature(mixed, 31) == 1


def test_what_was_learned_before_keeps_its_weight():
    first = methods.bayes_by_hypernet(network(), Categorical())
    learned = bbh.priors.DiagonalNormal.of(first)
    values = {name: value.detach() for name, value in network().named_parameters()}
    for prior in (
        learned,
        bbh.priors.PerLayer({"0.*": FromElsewhere(0.1)}),
        bbh.priors.Sampled.of(first),
        bbh.priors.Centred(values, bbh.priors.Normal(0.1)),
    ):
        later = methods.bayes_by_hypernet(network(), Categorical(), prior)
        assert own_temperature(later, 3) == 1
    assert own_temperature(first.with_prior(learned), 3) == 1


def test_fit_takes_it_and_says_so(capsys):
    posterior = methods.bayes_by_hypernet(network(), Categorical())
    history = bbh.fit(posterior, loader(), epochs=1, compare=False)
    assert history.temperature == 0.5
    shown = " ".join(capsys.readouterr().out.split())
    assert "temperature 0.5, since there are 323 weights for 20 examples" in shown
    bbh.fit(posterior, loader(), epochs=1, compare=False, temperature=0.5)
    assert "temperature" not in capsys.readouterr().out
    assert bbh.fit(posterior, loader(), epochs=1, progress=False, temperature=1).temperature == 1


def test_every_way_to_train_takes_the_same():
    def energies(temperature):
        torch.manual_seed(0)
        posterior = methods.bayes_by_hypernet(network(), Categorical())
        step = bbh.TrainingStep(
            posterior,
            torch.optim.SGD(posterior.parameters(), 0.1),
            num_data=20,
            temperature=temperature,
        )
        return step(next(iter(loader())))

    assert energies(None) == energies(0.5)
    assert energies(None)["total"] != energies(1.0)["total"]


def test_scikit_learn_counts_equal_rows():
    rows, labels = torch.randn(10, 4).numpy(), torch.arange(10).numpy() % 3
    settings = {"hidden_layer_sizes": (40,), "epochs": 1, "random_state": 0}
    once = bbh.adapters.BayesianClassifier(**settings).fit(rows, labels)
    assert once.history_.temperature == 0.35
    # Two copies of all rows are 20 examples in steps over 10 different ones.
    twice = bbh.adapters.BayesianClassifier(**settings).fit(
        rows.repeat(2, axis=0), labels.repeat(2)
    )
    assert twice.history_.temperature == 0.5 / 2


def test_scikit_learn_takes_small_weights_for_what_they_are():
    rows, labels = torch.randn(10, 4).numpy(), torch.arange(10).numpy() % 3
    light = bbh.adapters.BayesianClassifier(hidden_layer_sizes=(40,), epochs=1, random_state=0)
    light.fit(rows, labels, sample_weight=torch.full((10,), 0.02).numpy())
    # Rows that count for 0.2 examples together: 2 * sqrt(0.2 / 323), over the mean weight.
    assert light.history_.temperature == pytest.approx(0.05 / 0.02)


@pytest.mark.slow
def test_a_wide_network_on_few_digits_is_better_for_it(caplog):
    caplog.set_level(logging.ERROR)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    labels = torch.tensor(digits.target)
    train = DataLoader(TensorDataset(images[:600], labels[:600]), 50, shuffle=True)
    test = DataLoader(TensorDataset(images[1200:], labels[1200:]), 500)

    def nll(temperature):
        torch.manual_seed(0)
        wide = nn.Sequential(
            nn.Linear(64, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, 10)
        )
        posterior = methods.bayes_by_hypernet(wide, Categorical())
        bbh.fit(posterior, train, epochs=20, temperature=temperature, progress=False)
        return bbh.evaluate(posterior, test)["nll"]

    assert nll(None) < 0.8 * nll(1.0)
