"""Regression targets on their own scale: learned by ``fit``, given, or left alone."""

import logging
import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.likelihoods import Gaussian, HeteroscedasticGaussian, Standardisation


def loader(inputs, targets, **options):
    return DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True, **options)


def line(num=64):
    inputs = torch.linspace(-1, 1, num).unsqueeze(1)
    return inputs, 3 * inputs + 0.5 * torch.randn_like(inputs)


METHODS = {
    "map": bbh.methods.maximum_a_posteriori,
    "bbb": bbh.methods.bayes_by_backprop,
    "bbh": bbh.methods.bayes_by_hypernet,
}


class TestEquivariance:
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("width", [1, 2])
    def test_other_units_give_the_same_predictions_in_other_units(self, method, width):
        """Fitting a·y + b gives a·prediction + b, and an NLL that is log a larger."""
        a, b = 256.0, 8192.0
        inputs, targets = line()

        def fitted(targets):
            torch.manual_seed(1)
            likelihood = Gaussian() if width == 1 else HeteroscedasticGaussian()
            network = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, width))
            posterior = METHODS[method](network.double(), likelihood)
            history = bbh.fit(
                posterior,
                loader(inputs.double(), targets.double()),
                epochs=3,
                learning_rate=1e-3,
                progress=False,
            )
            torch.manual_seed(2)
            return history, bbh.predict(posterior, inputs.double(), 5), posterior

        history, here, _ = fitted(targets)
        other_history, there, posterior = fitted(a * targets + b)
        # The targets' own scale is kept in single precision, and training magnifies its rounding.
        close = {"rtol": 1e-3, "atol": 1e-4}
        torch.testing.assert_close(there.mean, a * here.mean + b, **close)
        torch.testing.assert_close(there.locs, a * here.locs + b, **close)
        torch.testing.assert_close(there.scales, a * here.scales, **close)
        torch.testing.assert_close(there.interval(0.9)[0], a * here.interval(0.9)[0] + b, **close)
        for epoch, other in zip(history, other_history, strict=True):
            assert other.nll == pytest.approx(epoch.nll + math.log(a), rel=1e-5)
            assert other.complexity == pytest.approx(epoch.complexity, rel=1e-5)
        metrics = posterior.likelihood.metrics(here, targets.double())
        scaled = posterior.likelihood.metrics(there, (a * targets + b).double())
        assert scaled["nll"] == pytest.approx(metrics["nll"] + math.log(a), rel=1e-4)
        assert scaled["error"] == pytest.approx(a * metrics["error"], rel=1e-4)
        assert scaled["crps"] == pytest.approx(a * metrics["crps"], rel=1e-4)
        assert scaled["coverage_95"] == pytest.approx(metrics["coverage_95"])

    def test_standardising_by_hand_is_the_same(self):
        """``fit`` on raw targets trains the network that standardised targets train."""
        inputs, targets = line()
        raw = 77 * targets + 152
        mean, std = raw.mean(), raw.std(correction=0)

        def weights(targets, likelihood):
            torch.manual_seed(1)
            posterior = bbh.methods.maximum_a_posteriori(nn.Linear(1, 1), likelihood)
            bbh.fit(posterior, loader(inputs, targets), epochs=3, progress=False)
            return posterior.sample(1)["weight"]

        by_hand = weights((raw - mean) / std, Gaussian(1.0, learned=True))
        torch.testing.assert_close(weights(raw, Gaussian()), by_hand, rtol=1e-4, atol=1e-5)


class TestLearning:
    def test_mean_and_standard_deviation_of_every_output(self):
        inputs = torch.randn(50, 3)
        targets = torch.randn(50, 2) * torch.tensor([5.0, 0.01]) + torch.tensor([100.0, -1.0])
        posterior = bbh.methods.maximum_a_posteriori(nn.Linear(3, 2), Gaussian())
        bbh.fit(posterior, loader(inputs, targets), epochs=1, progress=False)
        likelihood = posterior.likelihood
        torch.testing.assert_close(likelihood.target_loc, targets.mean(0))
        torch.testing.assert_close(likelihood.target_scale, targets.std(0, correction=0))

    def test_seeds_give_the_batches_that_they_would_give_without(self):
        inputs, targets = line()
        generator = torch.Generator().manual_seed(3)
        seen = []

        class Watched(TensorDataset):
            def __getitem__(self, index):
                seen.append(index)
                return super().__getitem__(index)

        def orders(likelihood):
            seen.clear()
            torch.manual_seed(0)
            generator.manual_seed(3)
            data = DataLoader(
                Watched(inputs, targets), batch_size=16, shuffle=True, generator=generator
            )
            posterior = bbh.methods.maximum_a_posteriori(nn.Linear(1, 1), likelihood)
            bbh.fit(posterior, data, epochs=2, progress=False)
            return list(seen), torch.rand(3)

        learned, after_learned = orders(Gaussian())
        given, after_given = orders(Gaussian(standardise=Standardisation(0.0, 2.0)))
        # One pass more, of the first epoch's order, or one batch for the warning.
        assert len(learned) == 3 * 64
        assert len(given) == 2 * 64 + 16
        assert learned[64:] == given[16:]
        assert learned[:64] == learned[64:128]
        assert torch.equal(after_learned, after_given)

    def test_training_on_keeps_what_was_learned(self):
        inputs, targets = line()
        posterior = bbh.methods.maximum_a_posteriori(nn.Linear(1, 1), Gaussian())
        bbh.fit(posterior, loader(inputs, targets), epochs=1, progress=False)
        before = posterior.likelihood.target_loc.clone()
        bbh.fit(posterior, loader(inputs, targets + 1), epochs=1, progress=False)
        assert torch.equal(posterior.likelihood.target_loc, before)

    def test_a_checkpoint_restores_it(self, tmp_path):
        inputs, targets = line()
        options = {"checkpoint": bbh.Checkpoint(tmp_path / "file", resume=True), "progress": False}
        for likelihood in (Gaussian, HeteroscedasticGaussian):
            network = nn.Linear(1, 1 if likelihood is Gaussian else 2)
            first = bbh.methods.maximum_a_posteriori(network, likelihood())
            bbh.fit(first, loader(inputs, 50 + targets), epochs=1, **options)
            later = bbh.methods.maximum_a_posteriori(network, likelihood())
            # Other targets: what was learned must come from the file.
            bbh.fit(later, loader(inputs, targets), epochs=2, **options)
            assert torch.equal(later.likelihood.target_loc, first.likelihood.target_loc)
            assert float(later.likelihood.target_loc) == pytest.approx(50, abs=1)
            (tmp_path / "file").unlink()

    def test_saving_and_loading(self, tmp_path):
        inputs = torch.randn(32, 3)
        targets = 1000 + 50 * torch.randn(32, 2)
        posterior = bbh.methods.bayes_by_backprop(nn.Linear(3, 4), HeteroscedasticGaussian())
        bbh.fit(posterior, loader(inputs, targets), epochs=1, progress=False)
        bbh.save(posterior, tmp_path / "file")
        loaded = bbh.load(tmp_path / "file", nn.Linear(3, 4))
        samples = posterior.sample(3)
        before = bbh.predict(posterior, inputs, samples=samples)
        after = bbh.predict(loaded, inputs, samples=samples)
        assert torch.equal(before.locs, after.locs)
        assert torch.equal(before.scales, after.scales)
        assert not loaded.likelihood.waits_for_targets

    def test_a_loop_of_ones_own(self):
        _, targets = line()
        likelihood = Gaussian()
        outputs = torch.randn(3, len(targets), 1)
        untouched = Gaussian(1.0).log_prob(outputs, targets)
        assert torch.equal(likelihood.log_prob(outputs, targets), untouched)
        likelihood.fit_targets(targets)
        loc, scale = targets.mean(), targets.std(correction=0)
        expected = torch.distributions.Normal(loc + scale * outputs, scale).log_prob(targets)
        torch.testing.assert_close(likelihood.log_prob(outputs, targets), expected.squeeze(-1))
        posterior = bbh.methods.maximum_a_posteriori(nn.Linear(1, 1), likelihood)
        assert torch.equal(posterior.likelihood.target_loc, likelihood.target_loc)

    def test_data_that_can_be_read_once_are_not_used_up(self, caplog):
        inputs, targets = line()
        posterior = bbh.methods.maximum_a_posteriori(nn.Linear(1, 1), Gaussian())
        with caplog.at_level(logging.WARNING, "bbh"):
            batches = iter([(inputs, targets)])
            history = bbh.fit(posterior, batches, epochs=1, num_data=64, progress=False)
        assert history[0].step == 1
        assert "fit_targets" in caplog.text


class TestKnownNoise:
    def test_is_in_the_targets_units(self):
        """With a given noise and standardised means, the noise stays what was given."""
        likelihood = Gaussian(3.0, standardise=Standardisation(100.0, 50.0))
        outputs, targets = torch.randn(4, 5, 1), 100 + 50 * torch.randn(5, 1)
        predictive = likelihood.predictive({}, 4, outputs)
        torch.testing.assert_close(predictive.scales, torch.full_like(outputs, 3.0))
        torch.testing.assert_close(predictive.locs, 100 + 50 * outputs)
        expected = torch.distributions.Normal(100 + 50 * outputs, 3.0).log_prob(targets)
        log_prob = likelihood.log_prob(outputs, targets)
        torch.testing.assert_close(log_prob, expected.squeeze(-1), rtol=1e-4, atol=1e-3)

    def test_leaves_the_targets_alone(self):
        inputs, targets = line()
        posterior = bbh.methods.maximum_a_posteriori(nn.Linear(1, 1), Gaussian(0.5))
        bbh.fit(posterior, loader(inputs, targets + 5), epochs=1, progress=False)
        assert not posterior.likelihood.target_loc.numel()

    def test_unknown_but_fixed_is_refused(self):
        with pytest.raises(ValueError, match="needs the noise's scale"):
            Gaussian(learned=False)


class TestWarnings:
    @pytest.mark.parametrize(
        ("likelihood", "factor", "shift", "words"),
        [
            (Gaussian(1.0), 77.0, 152.0, "far from the network's first outputs"),
            (Gaussian(1.0), 1e-3, 0.0, "learn little from them"),
            (HeteroscedasticGaussian(standardise=False), 1.0, 100.0, "standardise=True"),
            (Gaussian(standardise=Standardisation(0.0, 1.0)), 1.0, 100.0, "first outputs"),
            (Gaussian(0.1), 1.0, 0.0, None),
            # The toy problem of the paper: x³ with noise 3.
            (Gaussian(3.0), 12.0, 0.0, None),
            (Gaussian(), 77.0, 152.0, None),
        ],
    )
    def test_far_targets(self, likelihood, factor, shift, words, caplog):
        inputs, targets = line()
        outputs = 2 if isinstance(likelihood, HeteroscedasticGaussian) else 1
        posterior = bbh.methods.maximum_a_posteriori(nn.Linear(1, outputs), likelihood)
        with caplog.at_level(logging.WARNING, "bbh"):
            shifted = loader(inputs, factor * targets + shift)
            bbh.fit(posterior, shifted, epochs=1, progress=False, compare=False)
        assert (words in caplog.text) if words else not caplog.text


def test_repr_shows_the_present_noise():
    likelihood = Gaussian()
    assert repr(likelihood) == "Gaussian(scale=1, learned=True, standardise=True)"
    likelihood.set_targets(Standardisation(152.0, 77.0))
    with torch.no_grad():
        likelihood.log_scale.fill_(math.log(0.5))
    assert repr(likelihood) == "Gaussian(scale=38.5, learned=True, targets=152 ± 77)"
    assert repr(Gaussian(0.1)) == "Gaussian(scale=0.1, learned=False, standardise=False)"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bbb", "bbh"])
def test_diabetes_in_its_own_units(method):
    """Raw targets of mean 152 and standard deviation 77, defaults: calibrated, and informative."""
    data = load_diabetes()
    inputs = torch.tensor(data.data / data.data.std(0), dtype=torch.float32)
    targets = torch.tensor(data.target, dtype=torch.float32).unsqueeze(1)
    order = torch.as_tensor(np.random.default_rng(0).permutation(len(inputs)))
    train, test = order[:342], order[342:]
    network = nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.Linear(50, 1))
    posterior = METHODS[method](network, Gaussian())
    train_loader = DataLoader(TensorDataset(inputs[train], targets[train]), 32, shuffle=True)
    bbh.fit(posterior, train_loader, epochs=150, learning_rate=1e-2, progress=False)
    found = bbh.evaluate(posterior, [(inputs[test], targets[test])], 100)
    constant = torch.distributions.Normal(targets[train].mean(), targets[train].std())
    assert 0.9 <= found["coverage_95"] <= 0.99
    assert found["nll"] < -float(constant.log_prob(targets[test]).mean())
