"""Likelihoods of counts against SciPy, brute force and an exact posterior."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.likelihoods import Gaussian, NegativeBinomial, Poisson
from bbh.predictive import CountPredictive

S, B = 3, 5


def loader(inputs: Tensor, targets: Tensor, batch_size: int = 50) -> DataLoader:
    return DataLoader(TensorDataset(inputs, targets), batch_size, shuffle=True)


def train_steps(posterior, inputs, targets, steps=100):
    """Full batches; ``fit`` itself costs more than such steps."""
    if posterior.likelihood.waits_for_targets:
        posterior.likelihood.fit_targets(targets)
    optimizer = torch.optim.Adam(posterior.parameters(), lr=0.05)
    step = bbh.TrainingStep(posterior, optimizer, num_data=len(targets))
    for _ in range(steps):
        step((inputs, targets))


def nbinom(rates, dispersion):
    size = 1 / dispersion
    return stats.nbinom(size, size / (size + rates))


class TestProbabilities:
    @pytest.mark.parametrize("event", [(), (1,), (2, 2)])
    @pytest.mark.parametrize("kind", [torch.long, torch.float32, torch.int32])
    def test_poisson_is_scipys(self, event, kind):
        outputs, targets = 2 * torch.randn(S, B, *event), torch.randint(0, 30, (B, *event))
        result = Poisson(base_rate=3.0).log_prob(outputs, targets.to(kind))
        expected = stats.poisson.logpmf(targets.numpy(), 3 * outputs.double().exp().numpy())
        expected = torch.as_tensor(expected).reshape(S, B, -1).sum(2)
        torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-4)

    # The smallest dispersion is where the difference of two Gamma functions loses all digits of
    # single precision.
    @pytest.mark.parametrize("dispersion", [1e-6, 0.1, 1.0, 30.0])
    def test_negative_binomial_is_scipys(self, dispersion):
        outputs, targets = torch.randn(S, B, 2), torch.randint(0, 200, (B, 2))
        likelihood = NegativeBinomial(dispersion, base_rate=20.0)
        rates = 20 * outputs.double().exp().numpy()
        expected = nbinom(rates, dispersion).logpmf(targets.numpy()).sum(-1)
        result = likelihood.log_prob(outputs, targets)
        torch.testing.assert_close(result.double(), torch.as_tensor(expected), rtol=1e-4, atol=1e-3)

    def test_dispersion_from_the_network(self):
        outputs, targets = torch.randn(S, B, 4), torch.randint(0, 9, (B, 2))
        likelihood = NegativeBinomial(from_network=True, base_rate=2.0)
        rates = 2 * outputs[..., :2].double().exp().numpy()
        dispersion = 1e-4 + nn.functional.softplus(outputs[..., 2:].double()).numpy()
        expected = nbinom(rates, dispersion).logpmf(targets.numpy()).sum(-1)
        result = likelihood.log_prob(outputs, targets).double()
        torch.testing.assert_close(result, torch.as_tensor(expected), rtol=1e-4, atol=1e-4)
        predictive = likelihood.predictive({}, S, outputs)
        torch.testing.assert_close(
            predictive.variances, torch.as_tensor(rates + dispersion * rates**2).float()
        )

    def test_learned_dispersion_has_the_likelihoods_gradient(self):
        likelihood = NegativeBinomial(0.5, learned=True, base_rate=1.0).double()
        outputs, targets = torch.randn(1, 6).double(), torch.randint(0, 9, (6,))
        (log_dispersion,) = likelihood.parameters()
        likelihood.log_prob(outputs, targets).sum().backward()

        def total(value):
            rates = outputs[0].exp().numpy()
            return nbinom(rates, math.exp(value)).logpmf(targets.numpy()).sum()

        middle = math.log(0.5)
        slope = (total(middle + 1e-5) - total(middle - 1e-5)) / 2e-5
        assert log_dispersion.grad is not None
        assert log_dispersion.grad.item() == pytest.approx(slope, rel=1e-4)


class TestBaseRate:
    def test_it_is_the_mean_count_of_every_output(self):
        likelihood = Poisson()
        counts = torch.tensor([[0, 400, 0], [2, 600, 0]])
        likelihood.fit_targets(counts)
        # A count that never occurred must remain possible.
        torch.testing.assert_close(likelihood.log_base.exp(), torch.tensor([1.0, 500.0, 0.25]))
        weighted = Poisson()
        weighted.fit_targets(counts[:, 1], torch.tensor([3.0, 1.0]))
        assert weighted.log_base.exp().item() == pytest.approx(450)

    @pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial()])
    def test_fit_learns_it_and_files_keep_it(self, likelihood, tmp_path):
        inputs, counts = torch.randn(60, 2), torch.randint(900, 1100, (60, 1))
        posterior = bbh.methods.maximum_a_posteriori(nn.Linear(2, 1), likelihood)
        bbh.fit(posterior, loader(inputs, counts), epochs=1, progress=False)
        assert posterior.likelihood.log_base.exp().item() == pytest.approx(
            counts.double().mean().item()
        )
        bbh.save(posterior, tmp_path / "file")
        read = bbh.load(tmp_path / "file", nn.Linear(2, 1))
        assert torch.equal(read.likelihood.log_base, posterior.likelihood.log_base)
        assert not read.likelihood.waits_for_targets
        mean = bbh.predict(posterior, inputs).mean
        assert torch.equal(bbh.predict(read, inputs).mean, mean)
        assert 100 < mean.mean() < 10_000

    def test_a_given_one_is_kept_in_any_form(self):
        for given in (2.5, torch.tensor(2.5), np.float64(2.5)):
            assert Poisson(given).base_rate == 2.5
        assert Poisson(torch.tensor([1.0, 2.0])).base_rate == (1.0, 2.0)
        assert not Poisson(2.5).waits_for_targets

    @pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, [1.0, 0.0], torch.ones(1, 1)])
    def test_wrong_ones(self, wrong):
        with pytest.raises(ValueError, match="base_rate"):
            Poisson(wrong)


class TestTargets:
    @pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial()])
    @pytest.mark.parametrize(
        ("targets", "value"),
        [
            (torch.tensor([1.0, 2.5]), "2.5"),
            (torch.tensor([3, -4]), "-4"),
            (torch.tensor([0.0, math.nan]), "nan"),
        ],
    )
    def test_what_is_no_count_is_named(self, likelihood, targets, value):
        with pytest.raises(ValueError, match=f"1 of 2 targets are not, such as {value}"):
            likelihood.log_prob(torch.zeros(1, 2), targets)
        posterior = bbh.methods.maximum_a_posteriori(nn.Linear(2, 1), likelihood)
        with pytest.raises(ValueError, match=f"such as {value}"):
            bbh.fit(
                posterior, loader(torch.randn(2, 2), targets[:, None]), epochs=1, progress=False
            )

    def test_shapes(self):
        with pytest.raises(ValueError, match="Reshape the targets"):
            Poisson().log_prob(torch.zeros(S, B, 1), torch.zeros(B))
        with pytest.raises(ValueError, match="even number"):
            NegativeBinomial(from_network=True).log_prob(torch.zeros(S, B, 3), torch.zeros(B, 1))
        with pytest.raises(ValueError, match="base rates of 2 outputs"):
            Poisson((1.0, 2.0)).log_prob(torch.zeros(S, B, 3), torch.zeros(B, 3))

    def test_settings_that_contradict_each_other(self):
        with pytest.raises(ValueError, match="leave out dispersion"):
            NegativeBinomial(0.5, from_network=True)
        with pytest.raises(ValueError, match="needs the dispersion"):
            NegativeBinomial(learned=False)
        with pytest.raises(ValueError, match="dispersion=0"):
            NegativeBinomial(0.0)


class TestPredictive:
    RATES = torch.tensor([[0.3, 80.0], [2.0, 100.0], [5.0, 3e4]]).double()

    @pytest.mark.parametrize("dispersion", [None, 1e-3, 0.5])
    def test_quantiles_by_brute_force(self, dispersion):
        dispersions = None if dispersion is None else torch.full_like(self.RATES, dispersion)
        predictive = CountPredictive(self.RATES.mean(0), 3, self.RATES, dispersions)
        levels = (1e-4, 0.1, 0.5, 0.9, 0.999)
        result = predictive.quantiles(levels)
        assert torch.equal(result, result.floor())
        for column in range(2):
            rates = self.RATES[:, column : column + 1].numpy()
            counts = np.arange(200 if column == 0 else 300_000)
            which = stats.poisson(rates) if dispersion is None else nbinom(rates, dispersion)
            reached = which.cdf(counts[None]).mean(0)
            expected = [int(np.searchsorted(reached, level)) for level in levels]
            assert result[:, column].tolist() == expected

    def test_a_rate_of_zero(self):
        predictive = CountPredictive(torch.zeros(1), 1, torch.zeros(1, 1))
        assert predictive.quantiles([0.5, 0.999]).tolist() == [[0.0], [0.0]]
        assert predictive.log_prob(torch.zeros(1)).item() == pytest.approx(0)

    @pytest.mark.parametrize("dispersion", [None, 0.4])
    def test_samples_have_its_moments(self, dispersion):
        rates = self.RATES[:, :1]
        dispersions = None if dispersion is None else torch.full_like(rates, dispersion)
        predictive = CountPredictive(rates.mean(0), 3, rates, dispersions)
        drawn = predictive.sample(200_000)
        assert drawn.mean().item() == pytest.approx(predictive.mean.item(), rel=0.02)
        assert drawn.std().item() == pytest.approx(predictive.total_std.item(), rel=0.02)

    def test_log_probability_of_the_mixture(self):
        predictive = CountPredictive(self.RATES.mean(0), 3, self.RATES)
        targets = torch.tensor([1.0, 90.0])
        each = stats.poisson.pmf(targets.numpy(), self.RATES.numpy())
        expected = torch.as_tensor(np.log(each.mean(0)))
        torch.testing.assert_close(predictive.log_prob(targets), expected)
        together = CountPredictive(self.RATES.mean(0)[None], 3, self.RATES[:, None])
        expected = torch.as_tensor(np.log(each.prod(1).mean(0)))
        torch.testing.assert_close(together.log_prob(targets[None])[0], expected)

    def test_entropy_is_refused_with_a_reason(self):
        predictive = CountPredictive(self.RATES.mean(0), 3, self.RATES)
        assert not hasattr(predictive, "entropy")
        with pytest.raises(AttributeError, match="epistemic_std"):
            _ = predictive.mutual_information
        with pytest.raises(AttributeError, match="no attribute 'other'"):
            _ = predictive.other

    def test_metrics_and_the_constant_prediction(self):
        training, judged = torch.tensor([[1], [3]]), torch.tensor([[4], [0]])
        found = Poisson().constant(training, judged)
        expected = -stats.poisson.logpmf(judged.numpy(), 2).mean()
        assert found["nll"] == pytest.approx(expected)
        assert found["error"] == pytest.approx(2)
        assert found["mae"] == pytest.approx(2)
        # Variance 4 and mean 2: a dispersion of a half.
        found = NegativeBinomial().constant(torch.tensor([[0], [4]]), judged)
        assert found["nll"] == pytest.approx(-nbinom(2, 0.5).logpmf(judged.numpy()).mean())


def test_the_posterior_of_a_rate_is_the_exact_one():
    """One log rate with a Normal prior, whose posterior and evidence quadrature gives."""
    counts = torch.tensor([3, 1, 4, 1, 5, 2, 0, 6]).view(-1, 1)
    grid = np.linspace(-6, 6, 20_001)
    logs = stats.poisson.logpmf(counts.numpy(), np.exp(grid)).sum(0) + stats.norm.logpdf(grid)
    density = np.exp(logs - logs.max())
    area = np.trapezoid(density, grid)
    mean = np.trapezoid(density * grid, grid) / area
    std = math.sqrt(np.trapezoid(density * (grid - mean) ** 2, grid) / area)
    evidence = logs.max() + math.log(area)

    network = nn.Linear(1, 1, bias=False)
    prior = bbh.priors.Normal(1.0)
    posterior = bbh.methods.bayes_by_backprop(network, Poisson(base_rate=1.0), prior)
    batch = (torch.ones(len(counts), 1), counts)
    bbh.fit(
        posterior,
        [batch] * 20,
        num_data=len(counts),
        epochs=10,
        num_samples=50,
        learning_rate=0.05,
        scheduler=lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, 10),
        progress=False,
    )
    loc, scale = posterior.weights.marginals()
    assert loc.item() == pytest.approx(mean, abs=0.06 * std)
    assert scale.item() == pytest.approx(std, rel=0.06)
    energy = bbh.free_energy(posterior, batch, num_data=len(counts), num_samples=20_000)
    bound = -energy.total.item() * len(counts)
    # The posterior is nearly, but not quite, a Gaussian.
    assert evidence - 0.05 < bound < evidence + 0.02
    predictive = bbh.predict(posterior, torch.ones(1, 1), 5_000)
    exact = np.trapezoid(density * np.exp(grid), grid) / area
    assert predictive.mean.item() == pytest.approx(exact, rel=0.02)


def test_intervals_of_counts_that_vary_more_than_poisson():
    """With a dispersion, 90 % intervals hold 90 % of new counts; Poisson's hold far fewer."""

    def simulate(number):
        inputs = torch.randn(number, 1)
        rates = 30 * (0.5 * inputs).exp()
        return inputs, torch.poisson(torch.distributions.Gamma(4.0, 4.0 / rates).sample())

    inputs, counts = simulate(400)
    new_inputs, new_counts = simulate(2000)
    inside, found = {}, {}
    for likelihood in (Poisson(), NegativeBinomial()):
        name = type(likelihood).__name__
        posterior = bbh.methods.maximum_a_posteriori(nn.Linear(1, 1), likelihood)
        train_steps(posterior, inputs, counts)
        lower, upper = bbh.predict(posterior, new_inputs).interval(0.9)
        inside[name] = bbh.metrics.interval_coverage(lower, upper, new_counts)
        found[name] = posterior.likelihood
    assert 0.88 < inside["NegativeBinomial"] < 0.94
    assert inside["Poisson"] < 0.7
    assert found["NegativeBinomial"].log_dispersion.exp().item() == pytest.approx(0.25, rel=0.25)


def test_an_exposure_is_an_offset():
    """Counts over times: the rate per unit of time is found, and predictions scale with time."""
    times = 1000 * torch.rand(300, 1) + 100
    inputs = torch.randn(300, 1)
    counts = torch.poisson(0.02 * (0.7 * inputs).exp() * times)
    posterior = bbh.methods.maximum_a_posteriori(
        nn.Linear(1, 1),
        Poisson(base_rate=counts.sum() / times.sum()),
        forward=lambda network, given: network(given[0]) + given[1].log(),
    )
    train_steps(posterior, (inputs, times), counts)
    assert posterior.sample(1)["weight"].item() == pytest.approx(0.7, abs=0.04)
    one, double = (
        bbh.predict(posterior, (torch.zeros(1, 1), torch.full((1, 1), time))).mean
        for time in (100.0, 200.0)
    )
    assert one.item() == pytest.approx(2.0, rel=0.08)
    torch.testing.assert_close(double, 2 * one)


def test_counts_keep_their_digits_under_mixed_precision():
    outputs, targets = torch.full((1, 1), 6.0), torch.tensor([400])
    exact = Poisson(1.0).log_prob(outputs, targets)
    torch.testing.assert_close(Poisson(1.0).log_prob(outputs.bfloat16(), targets), exact)


def test_repr_shows_what_was_learned():
    assert repr(Poisson()) == "Poisson(base_rate=learned)"
    assert repr(Poisson(3.0)) == "Poisson(base_rate=3)"
    assert (
        repr(NegativeBinomial(0.5))
        == "NegativeBinomial(dispersion=0.5, learned=False, base_rate=learned)"
    )
    assert not isinstance(Poisson(), Gaussian)
