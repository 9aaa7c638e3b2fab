"""The temperature that ``fit`` takes by itself: 1, or less where a network is wide for its data."""

import logging

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.likelihoods import Categorical
from bbh.network import width
from bbh.objective import own_temperature

methods = bbh.methods


def network(hidden: int = 400) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 3))


class FromElsewhere(bbh.priors.Normal):
    """A prior that says what other data have taught."""

    is_learned = True


NUM_WEIGHTS = sum(one.numel() for one in network().parameters())  # 3,203
WIDE = 0.19  # 75 over 403 units


def loader(number: int = 20) -> DataLoader:
    data = TensorDataset(torch.randn(number, 4), torch.randint(3, (number,)))
    return DataLoader(data, 10)


@pytest.mark.parametrize(
    ("num_data", "expected"),
    [(10**6, 1.0), (NUM_WEIGHTS, 1.0), (1600, 0.5), (640, 0.2), (20, WIDE), (1, WIDE)],
)
def test_as_many_examples_as_weights_or_few_units(num_data, expected):
    posterior = methods.bayes_by_hypernet(network(), Categorical())
    assert own_temperature(posterior, num_data) == expected


@pytest.mark.parametrize(("hidden", "expected"), [(1, 1.0), (72, 1.0), (73, 0.99), (7497, 0.01)])
def test_narrow_networks_have_the_evidence_lower_bound(hidden, expected):
    posterior = methods.bayes_by_hypernet(network(hidden), Categorical())
    assert own_temperature(posterior, 1) == expected


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Linear(4, 5, bias=False), 5),
        (nn.Linear(2000, 5), 2000),
        (nn.Conv1d(40, 6, 3), 120),
        (nn.Conv2d(2, 60, 3, groups=2), 60),
        (nn.ConvTranspose1d(4, 60, 3, groups=2), 60),
        (nn.Embedding(50, 3), 0),
        (nn.GRU(3, 5), 2 * 3 * 5),
        (nn.LayerNorm(9), 0),
        (nn.utils.parametrizations.weight_norm(nn.Linear(7, 5)), 2 * 5),
    ],
    ids=str,
)
def test_width_is_the_units_or_the_inputs_of_one(layer, expected):
    assert width(layer, dict(layer.named_parameters())) == expected


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
    assert own_temperature(last, 1) == WIDE  # three units with 400 inputs each
    biases = methods.bayes_by_hypernet(network(), Categorical(), bayesian="*.bias")
    assert own_temperature(biases, 1) == 1
    first = methods.bayes_by_hypernet(network(), Categorical(), bayesian="0")
    assert own_temperature(first, 1000) == 0.5  # 2,000 weights


def test_members_of_a_mixture_count_once():
    mixed = methods.mixture(
        network(), Categorical(), method=methods.bayes_by_hypernet, num_members=3
    )
    assert own_temperature(mixed, 20) == WIDE


def test_points_of_a_mixtures_members_do_not_count():
    mixed = methods.mixture(
        network(), Categorical(), method=methods.bayes_by_hypernet, num_members=2, bayesian="2"
    )
    assert own_temperature(mixed, 1000) == 0.83  # 1,203 weights


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
    assert history.temperature == WIDE
    assert "temperature=0.19" in repr(history)
    shown = " ".join(capsys.readouterr().out.split())
    assert "temperature 0.19: the network is wide for 20 examples" in shown
    bbh.fit(posterior, loader(), epochs=1, compare=False, temperature=WIDE)
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

    assert energies(None) == energies(WIDE)
    assert energies(None)["total"] != energies(1.0)["total"]


def test_scikit_learn_counts_equal_rows():
    rows, labels = torch.randn(10, 4).numpy(), torch.arange(10).numpy() % 3

    def temperature(copies, weight=1.0):
        wide = bbh.adapters.BayesianClassifier(hidden_layer_sizes=(80,), epochs=1, random_state=0)
        weights = torch.full((10 * copies,), weight).numpy()
        wide.fit(rows.repeat(copies, axis=0), labels.repeat(copies), sample_weight=weights)
        return wide.history_.temperature

    assert temperature(1) == 0.9  # 75 over 83 units
    # Two copies of all rows are 20 examples in steps over 10 different ones.
    assert temperature(2) == 0.9 / 2
    # 620 examples for 643 weights. Small weights are not rounded away.
    assert temperature(1, weight=62.0) == pytest.approx(0.96 / 62)
    assert temperature(1, weight=0.02) == pytest.approx(0.9 / 0.02)


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
