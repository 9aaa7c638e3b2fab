"""Numbers of an inspection on distributions where they are known."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.inspect import (
    Correlation,
    EffectiveDimension,
    Kurtosis,
    Moments,
    functional_diversity,
    gathering,
    look,
    strong_by_chance,
)
from bbh.inspect.diversity import class_kl, gaussian_kl
from bbh.memory import peak_bytes
from bbh.methods import Particles
from scenarios import METHODS, SmallLeNet, mlp


def ensemble(network, likelihood, **members):
    return bbh.Posterior(network, Particles(members), bbh.priors.Normal(1.0), likelihood)


class TestKnownDistribution:
    """Four kernel weights b₁, b₂, b₁ + b₂, −b₁ and a bias 3b₂ of two fair coins ±1."""

    def test_numbers_are_exact(self, coins):
        looked = look(coins, num_samples=400)
        assert (looked.num_samples, looked.num_weights) == (400, 5)
        # Two atoms have −2; the sum has E x⁴ = 8 and variance 2.
        kurtosis = torch.tensor([-2, -2, -1, -2, -2], dtype=torch.float64)
        torch.testing.assert_close(looked.kurtosis.excess, kurtosis, atol=1e-6, rtol=0)
        stds = torch.tensor([1, 1, 2, 1, 9], dtype=torch.float64).sqrt() * math.sqrt(400 / 399)
        torch.testing.assert_close(looked.spread.everywhere, stds, atol=1e-6, rtol=0)
        root = math.sqrt(0.5)
        expected = [[1, 0, root, -1], [0, 1, root, 0], [root, root, 1, -root], [-1, 0, -root, 1]]
        found = looked.correlation.matrix.numpy()
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert looked.correlation.strong_share == pytest.approx(4 / 6)
        # Of MᵀM = [[3, 1], [1, 11]]: 14² / (9 + 1 + 1 + 121).
        assert looked.dimension.num_samples == 256
        assert looked.dimension.of_sample == pytest.approx(196 / 132, abs=1e-6)
        assert looked.dimension.estimate == pytest.approx(196 / 132, rel=0.02)
        # Variances alone: 14² / (1 + 1 + 4 + 1 + 81).
        assert looked.dimension.independent == pytest.approx(196 / 88, rel=0.01)
        assert looked.dimension.tensors["bias"] == pytest.approx(1)
        # The kernel alone: [[3, 1], [1, 2]].
        assert looked.dimension.tensors["weight"] == pytest.approx(25 / 15, rel=0.02)
        # Two equal atoms are a quarter away from one mode, the outer ones of three an eighth.
        dips = torch.tensor([0.25, 0.25, 0.125, 0.25], dtype=torch.float64)
        torch.testing.assert_close(looked.bimodality.dips, dips, atol=1e-6, rtol=0)
        assert looked.bimodality.share == 1
        assert looked.diversity is None

    def test_fan_in_scales(self, coins):
        looked = look(coins, num_samples=400)
        assert looked.spread.fan_in == {"weight": 4, "bias": 4}
        assert float(looked.spread.relative("bias")) == pytest.approx(6, rel=2e-3)

    def test_marginals_are_the_draws_in_their_places(self, coins):
        samples = coins.sample(8)
        marginals = look(coins, samples=samples).marginals
        assert marginals.tensor == "weight"
        assert marginals.places == [(0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0), (0, 0, 1, 1)]
        assert marginals.draws[:, 0].tolist() == [4, 6] * 4
        other = look(coins, samples=samples, tensor="bias").marginals
        assert other.draws[:, 0].tolist() == [-3, -3, 3, 3] * 2

    def test_pieces_make_no_difference(self, coins, monkeypatch):
        samples = {name: value.double() for name, value in coins.sample(60).items()}
        samples = {name: value + torch.randn_like(value) for name, value in samples.items()}
        whole = look(coins, samples=samples)
        monkeypatch.setattr(gathering, "_PIECE_BYTES", 4 * 5 * 11)  # eleven draws each
        in_pieces = look(coins, samples=samples, memory_limit=16 * 5 * 60)
        assert in_pieces.num_samples == 60
        first, second = (json.dumps(_rounded(one.numbers())) for one in (whole, in_pieces))
        assert first == second

    def test_draws_that_are_not_kept(self, coins):
        looked = look(coins, num_samples=400, memory_limit=800)
        assert looked.dimension.num_samples == 10
        assert looked.kurtosis.quantiles[0] == pytest.approx(-2)
        assert looked.correlation.strong_share == pytest.approx(4 / 6)


def _rounded(numbers):
    if isinstance(numbers, dict):
        return {name: _rounded(one) for name, one in numbers.items()}
    if isinstance(numbers, list):
        return [_rounded(one) for one in numbers]
    return float(f"{numbers:.9g}") if isinstance(numbers, float) else numbers


class TestMoments:
    @pytest.mark.parametrize("cuts", [[100], [1, 99], [30, 1, 69], [25] * 4])
    def test_against_scipy(self, cuts):
        draws = 1000 + torch.randn(100, 4, dtype=torch.float64).exp()
        first, *rest = draws.split(cuts)
        moments = Moments(first)
        for piece in rest:
            moments.add(piece)
        excess = stats.kurtosis(draws.numpy(), axis=0)
        np.testing.assert_allclose(moments.excess_kurtosis, excess, rtol=1e-8)
        np.testing.assert_allclose(moments.std, draws.std(0), rtol=1e-10)
        np.testing.assert_allclose(moments.mean, draws.mean(0), rtol=1e-12)

    def test_squared_variance_is_the_mean_over_different_draws(self):
        draws = torch.randn(6, 1, dtype=torch.float64).exp()
        products = [
            float((draws[a] - draws[b]) ** 2 * (draws[c] - draws[d]) ** 2) / 4
            for a, b, c, d in itertools.permutations(range(6), 4)
        ]
        assert float(Moments(draws).variance_squared) == pytest.approx(np.mean(products))

    @pytest.mark.parametrize("number", [5, 10, 500])
    def test_gaussian_kurtosis_strays_as_told(self, number):
        moments = Moments(torch.randn(number, 20_000))
        told = Kurtosis(moments.excess_kurtosis, number)
        assert float(told.excess.mean()) == pytest.approx(told.gaussian_mean, abs=0.02)
        assert float(told.excess.std()) == pytest.approx(told.gaussian_std, rel=0.05)


def test_one_draw_that_differs_has_no_dimension():
    draws = torch.zeros(5, 4)
    draws[2] = 1.0
    dimension = EffectiveDimension.of(draws, {"w": torch.Size([4])}, Moments(draws))
    assert dimension.independent is None
    assert "takes four draws" in str(dimension)


def test_dropout_by_the_networks_own_layers_has_points_for_weights():
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 3))
    posterior = bbh.methods.mc_dropout(network, bbh.likelihoods.Categorical())
    with pytest.raises(ValueError, match="MC dropout by the network's own layers"):
        look(posterior)


class TestEffectiveDimension:
    def of(self, draws):
        shape = {"w": draws.shape[1:]}
        return EffectiveDimension.of(draws, shape, Moments(draws))

    def test_estimate_is_the_mean_over_different_draws(self):
        draws = 5 + torch.randn(7, 3, dtype=torch.float64)
        trace, square = [], []
        for a, b, c, d in itertools.permutations(range(7), 4):
            one, two = draws[a] - draws[b], draws[c] - draws[d]
            trace.append(float(one @ one * (two @ two)))
            square.append(float((one @ two) ** 2))
        assert self.of(draws).estimate == pytest.approx(sum(trace) / sum(square))

    def test_of_sample_is_that_of_the_covariance(self):
        draws = torch.randn(20, 6, dtype=torch.float64) * torch.arange(1, 7)
        eigenvalues = torch.linalg.eigvalsh(torch.cov(draws.T))
        expected = eigenvalues.sum() ** 2 / eigenvalues.square().sum()
        assert self.of(draws).of_sample == pytest.approx(float(expected))

    @pytest.mark.parametrize("factor", [0.0, 0.5])
    def test_many_dimensions_from_few_draws(self, factor):
        # A common random length makes draws of any direction longer and shorter together.
        draws = torch.randn(100, 20_000) * (factor * torch.randn(100, 1)).exp()
        found = self.of(draws)
        assert found.estimate == pytest.approx(20_000, rel=0.2)
        assert found.of_sample < 100

    def test_few_dimensions(self):
        line = torch.randn(50, 1, dtype=torch.float64) @ torch.randn(1, 300, dtype=torch.float64)
        assert self.of(line).estimate == pytest.approx(1)
        basis = torch.linalg.qr(torch.randn(300, 8, dtype=torch.float64)).Q
        found = self.of(torch.randn(256, 8, dtype=torch.float64) @ basis.T)
        assert found.estimate == pytest.approx(8, rel=0.05)
        assert found.independent == pytest.approx(
            64 / float(basis.square().sum(1).square().sum()), rel=0.05
        )


class TestCorrelation:
    @pytest.mark.parametrize("number", [3, 4, 7, 12, 30])
    def test_chance_is_exact(self, number):
        # The correlation's t statistic has S − 2 degrees of freedom.
        t = 0.5 * math.sqrt((number - 2) / 0.75)
        assert strong_by_chance(number) == pytest.approx(2 * stats.t.sf(t, number - 2), abs=1e-4)

    def test_independent_gaussians_give_what_is_told(self):
        found = Correlation.of("w", torch.randn(10, 400))
        assert found.strong_share == pytest.approx(found.independent_share, abs=0.01)

    def test_against_torch_and_with_a_constant(self):
        draws = torch.randn(30, 5, dtype=torch.float64)
        draws[:, 2] = 0.1
        found = Correlation.of("w", draws)
        kept = [0, 1, 3, 4]
        expected = torch.corrcoef(draws[:, kept].T)
        torch.testing.assert_close(found.matrix[kept][:, kept], expected)
        assert found.matrix[2].isnan().all()
        assert len(found.pairs) == 6


class TestDiversity:
    def test_classes_in_closed_form(self):
        # Probabilities (0.9, 0.1) twice and (0.1, 0.9) once, for the input 1.
        logits = math.log(9) * torch.tensor([[1.0, 0], [1, 0], [0, 1]])
        network = nn.Linear(1, 2, bias=False)
        posterior = ensemble(network, bbh.likelihoods.Categorical(), weight=logits.unsqueeze(2))
        found = functional_diversity(posterior, torch.ones(4, 1))
        assert found.disagreement == pytest.approx(2 / 3)
        assert found.kl == pytest.approx(2 / 3 * 0.8 * math.log(9))
        assert (found.num_samples, found.num_inputs) == (3, 4)

    def test_yes_or_no_is_two_classes(self):
        logits = math.log(9) * torch.tensor([1.0, 1, -1])
        network = nn.Linear(1, 1, bias=False)
        posterior = ensemble(network, bbh.likelihoods.Bernoulli(), weight=logits.view(3, 1, 1))
        found = functional_diversity(posterior, torch.ones(2, 1))
        assert found.disagreement == pytest.approx(2 / 3)
        assert found.kl == pytest.approx(2 / 3 * 0.8 * math.log(9))

    def test_regression_in_closed_form(self):
        network = nn.Linear(1, 2, bias=False)
        weight = torch.tensor([[0.0, 0.0], [4.0, 1.0]]).unsqueeze(2)
        posterior = ensemble(network, bbh.likelihoods.Gaussian(2.0), weight=weight)
        found = functional_diversity(posterior, torch.ones(3, 1))
        assert found.kl == pytest.approx((16 + 1) / (2 * 4))
        assert found.disagreement is None

    def test_against_all_pairs(self):
        probs = (2 * torch.randn(5, 3, 4, dtype=torch.float64)).softmax(-1)
        locs, scales = torch.randn(5, 3, 2), torch.rand(5, 3, 2) + 0.5
        classes, gaussians = [], []
        for s, t in itertools.permutations(range(5), 2):
            classes.append((probs[s] * (probs[s] / probs[t]).log()).sum(-1).mean())
            one, two = (torch.distributions.Normal(locs[i], scales[i]) for i in (s, t))
            gaussians.append(torch.distributions.kl_divergence(one, two).sum(-1).mean())
        assert class_kl(probs) == pytest.approx(float(torch.stack(classes).mean()))
        assert gaussian_kl(locs, scales) == pytest.approx(float(torch.stack(gaussians).mean()))

    def test_certain_predictions_stay_finite(self):
        probs = torch.eye(2).unsqueeze(1)
        assert class_kl(probs) == pytest.approx(-math.log(torch.finfo(torch.float32).tiny))

    def test_look_compares_functions_of_the_given_draws(self):
        posterior = bbh.methods.bayes_by_backprop(mlp(), bbh.likelihoods.Categorical())
        inputs, samples = torch.randn(20, 4), posterior.sample(30)
        looked = look(posterior, inputs, samples=samples)
        assert looked.diversity == functional_diversity(posterior, inputs, samples=samples)


class TestAnyPosterior:
    @pytest.mark.parametrize("name", [name for name in METHODS if name != "maximum_a_posteriori"])
    def test_every_method_is_looked_at_and_healthy(self, name):
        posterior = METHODS[name](SmallLeNet(), bbh.likelihoods.Categorical())
        images = torch.randn(30, 1, 8, 8)
        # Some methods have no spread before they have seen data.
        loader = DataLoader(TensorDataset(images, torch.arange(30) % 3), batch_size=10)
        bbh.fit(posterior, loader, epochs=4, learning_rate=0.01, progress=False)
        looked = look(posterior, images, num_samples=200)
        assert looked.num_samples == posterior.weights.num_useful(200)
        first = "conv2.weight" if name == "mc_dropout" else "conv1.weight"
        assert looked.marginals.tensor == first
        assert [sign.name for sign in looked.signs if sign.name != "one function"] == []
        json.dumps(looked.numbers(), allow_nan=False)
        assert str(looked).count("\n") >= 7

    def test_mean_field_weights_are_independent_gaussians(self):
        posterior = bbh.methods.bayes_by_backprop(SmallLeNet(), bbh.likelihoods.Categorical())
        looked = look(posterior, num_samples=1000)
        assert looked.num_weights == 345
        assert looked.bimodality.share <= 0.05
        assert looked.correlation.strong_share == 0
        assert abs(looked.kurtosis.quantiles[1]) < 0.1
        assert looked.dimension.estimate == pytest.approx(looked.dimension.independent, rel=0.1)

    def test_points_by_design_are_left_out(self):
        network = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
        posterior = bbh.methods.bayes_by_hypernet(network, bbh.likelihoods.Categorical())
        looked = look(posterior, num_samples=50)
        assert looked.num_weights == 4 * 8 + 8 + 8 * 3 + 3
        assert looked.signs == ()

    def test_training_mode_and_randomness_come_back(self):
        posterior = METHODS["multiplicative_normalizing_flows"](
            mlp(), bbh.likelihoods.Categorical()
        ).train()
        looked = look(posterior, num_samples=20)
        torch.manual_seed(0)
        again = look(
            METHODS["multiplicative_normalizing_flows"](mlp(), bbh.likelihoods.Categorical()),
            num_samples=20,
        )
        assert posterior.training
        assert looked.numbers() == again.numbers()

    def test_large_networks_need_little_memory(self):
        network = nn.Linear(1000, 100)
        posterior = bbh.methods.bayes_by_backprop(network, bbh.likelihoods.Gaussian())
        limit = 32 * 2**20
        peak = peak_bytes(lambda: look(posterior, num_samples=400, memory_limit=limit))
        # All draws are 160 MB; moments of 100,100 weights take a few times 0.8.
        assert peak < 2 * limit


class TestBadInput:
    def test_a_point_has_nothing_to_look_at(self):
        posterior = bbh.methods.maximum_a_posteriori(mlp(), bbh.likelihoods.Categorical())
        with pytest.raises(ValueError, match="every weight of this posterior is a point estimate"):
            look(posterior)

    def test_unknown_tensor(self, coins):
        with pytest.raises(ValueError, match="Did you mean 'weight'"):
            look(coins, tensor="wieght")

    def test_too_few_draws(self, coins):
        with pytest.raises(ValueError, match="num_samples=1: how draws spread"):
            look(coins, num_samples=1)
        with pytest.raises(ValueError, match="one weight setting only"):
            look(coins, samples=coins.sample(1))

    def test_draws_that_lack_a_tensor(self, coins):
        samples = dict(coins.sample(5))
        del samples["bias"]
        with pytest.raises(ValueError, match=r"lack \['bias'\]"):
            look(coins, samples=samples)

    def test_draws_that_are_not_finite(self, coins):
        samples = dict(coins.sample(5))
        samples["bias"] = torch.full((5, 1), math.nan)
        with pytest.raises(ValueError, match="draws of bias are not finite"):
            look(coins, samples=samples)
