"""Distributions that start around trained weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bbh
from bbh.network import fan_in
from bbh_studies.problems.cifar5.study import Cifar5
from bbh_studies.problems.images.train_and_measure import ShuffledBatches
from bbh_studies.run import train
from bbh_studies.run.plan import plan
from bbh_studies.run.run import Run
from bbh_studies.run.warm_start import Later, first_config, trained_networks
from bbh_studies.settings.config import Config
from bbh_studies.settings.gaussian_prior import GaussianPrior
from bbh_studies.settings.hypernets import Hypernet, Mixture
from bbh_studies.settings.methods import BayesByBackprop, Flows
from bbh_studies.settings.optimisation import Optimisation
from bbh_studies.settings.words import ConfigError
from bbh_studies.studies import find_study

WARM = 3
TINY = Config(
    Hypernet(
        hidden=(8, 16), num_samples=5, divergence="entropy", noise_dim=4, warm_start_epochs=WARM
    ),
    Cifar5(blocks=1, width=4),
    Optimisation(epochs=1, batch_size=10),
    GaussianPrior("fan_in"),
)
OTHERS = {
    "bbh": TINY,
    "bbb": replace(TINY, method=BayesByBackprop(initial_scale=1e-3, warm_start_epochs=WARM)),
    "mnf": replace(TINY, method=Flows(initial_scale=1e-3, warm_start_epochs=WARM)),
}


def trained(config: Config, folder: Path, **settings: object) -> train.Trained:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(30, 3, 32, 32, generator=generator)
    labels = torch.randint(5, (30,), generator=generator)
    arguments = {"device": "cpu", "resume": False, "progress": False} | settings
    run = Run(find_study("cifar5"), config.method.word, "corrected", 0, config, folder)
    return train.train(run, images, labels, Batches, **arguments)


class Batches(ShuffledBatches):
    def __init__(self, images: Tensor, labels: Tensor):
        super().__init__(images, labels, 10)


def map_weights(config: Config, folder: Path) -> dict[str, Tensor]:
    """What the first stage alone comes to."""
    posterior = trained(first_config(config), folder).posterior
    return {name: value[0] for name, value in posterior.sample(1).items()}


@pytest.fixture
def still_second_stage(monkeypatch):
    """With a learning rate of zero it stays where it starts."""

    real = Optimisation.make_optimizer

    def make(self: Optimisation, posterior: bbh.Posterior):
        rate = self.learning_rate if self.epochs == WARM else 0.0
        return real(replace(self, learning_rate=rate), posterior)

    monkeypatch.setattr(Optimisation, "make_optimizer", make)


@pytest.mark.parametrize("method", OTHERS)
@pytest.mark.usefixtures("still_second_stage")
def test_the_mean_at_the_start_is_the_map_estimate(tmp_path, method):
    config = OTHERS[method]
    posterior = trained(config, tmp_path / "warm").posterior.eval()
    expected = map_weights(config, tmp_path / "map")
    samples = posterior.sample(2000)
    for name, value in samples.items():
        if "norm" in name:  # point estimates
            assert torch.equal(value[0], expected[name])
        elif method == "mnf":  # scaled by multipliers around one
            correlation = torch.corrcoef(
                torch.stack([value.mean(0).flatten(), expected[name].flatten()])
            )
            assert expected[name].numel() < 6 or correlation[0, 1] > 0.98
        else:
            # Means over z are set from 256 probes, so they are good to a sixteenth of the spread.
            distance = (value.mean(0) - expected[name]).square().mean().sqrt()
            assert distance < value.std(0).square().mean().sqrt() / 8, name
    # And the estimate is a trained one: not what the same seed begins with.
    torch.manual_seed(0)
    fresh = config.make_network()
    kernel = "blocks.0.conv1.weight"
    assert (expected[kernel] - dict(fresh.named_parameters())[kernel]).abs().mean() > 1e-3


@pytest.mark.usefixtures("still_second_stage")
def test_each_member_of_a_mixture_starts_around_an_estimate_of_its_own(tmp_path, monkeypatch):
    found = []

    def remembered(*arguments):
        found.extend(trained_networks(*arguments))
        return found

    monkeypatch.setattr("bbh_studies.run.warm_start.trained_networks", remembered)
    config = replace(TINY, method=Mixture.of(TINY.method, 2))
    posterior = trained(config, tmp_path).posterior.eval()
    samples = posterior.sample(2000)
    torch.manual_seed(0)
    fresh = [dict(config.make_network().named_parameters()) for _ in range(2)]
    assert len(found) == 2
    for number, network in enumerate(found):
        for name, expected in network.named_parameters():
            own = samples[name][number::2]
            if "norm" in name:
                assert torch.equal(own[0], expected)
                continue
            distance = (own.mean(0) - expected).square().mean().sqrt()
            assert distance < own.std(0).square().mean().sqrt() / 8, name
        kernel = "blocks.0.conv1.weight"
        assert (network.get_parameter(kernel) - fresh[number][kernel]).abs().mean() > 1e-3
        other = found[1 - number].get_parameter(kernel)
        assert (network.get_parameter(kernel) - other).abs().mean() > 1e-2


def test_settings_of_a_mixture_are_those_of_each_member():
    config = replace(TINY, method=Mixture.of(replace(TINY.method, likelihood_samples=2)))
    posterior = config.build_posterior()
    assert posterior.weights.samples_per_step == 5 * 5
    assert config.method.likelihood_draws == 5 * 2
    network = config.make_network()
    shapes = config.prior.shapes(network)
    number = sum(one.numel() for one in posterior.parameters())
    assert config.method.num_parameters(config.model(), shapes) == number
    optimizer = config.training.make_optimizer(posterior)(posterior.parameters())
    # The gradient of a mean over five is divided by five.
    assert optimizer.param_groups[0]["eps"] == 1e-5 / 5
    with pytest.raises(ConfigError, match="num_members=0"):
        Mixture(num_members=0).check()


@pytest.mark.usefixtures("still_second_stage")
def test_the_spread_is_what_was_asked_for(tmp_path):
    posterior = trained(TINY, tmp_path).posterior
    samples = posterior.sample(2000)
    shapes = {name: value.shape[1:] for name, value in samples.items()}
    for name in ("blocks.0.conv1.weight", "blocks.2.conv2.weight", "classify.weight"):
        found = samples[name].std(0).square().mean().sqrt().item()
        assert found == pytest.approx(0.1 / fan_in(name, shapes) ** 0.5, rel=0.4), name


def test_the_rate_falls_in_the_second_stage_only():
    training = first_config(TINY.with_settings(learning_rate=0.02, cosine_decay=True)).training
    assert (training.learning_rate, training.cosine_decay) == (0.02, False)


def test_statistics_of_batch_norm_come_along(tmp_path):
    config = first_config(TINY).with_settings(normalisation="batch")
    posterior = trained(config, tmp_path).posterior
    (network,) = trained_networks(posterior, config.make_network)
    assert isinstance(network.norm, nn.BatchNorm2d)
    assert network.norm.num_batches_tracked == 9
    images = torch.rand(4, 3, 32, 32)
    expected = posterior(images, posterior.sample(1))[0]
    torch.testing.assert_close(network.eval()(images), expected)


def test_an_interrupted_run_goes_on_in_either_stage(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)
    config = TINY.with_settings(epochs=3)
    whole = trained(config, tmp_path / "whole").posterior.state_dict()
    real = ShuffledBatches.__iter__
    for broken in (2, 5):  # an epoch of the first stage, and one of the second
        folder, epochs = tmp_path / str(broken), []

        def interrupted(self, broken=broken, epochs=epochs):
            epochs.append(1)
            if len(epochs) == broken:
                raise KeyboardInterrupt
            return real(self)

        with monkeypatch.context() as patch:
            patch.setattr(ShuffledBatches, "__iter__", interrupted)
            with pytest.raises(KeyboardInterrupt):
                trained(config, folder)
        resumed = trained(config, folder, resume=True)
        for name, value in resumed.posterior.state_dict().items():
            assert torch.equal(value, whole[name]), name
        assert len(resumed.history) == 3


def test_a_finished_first_stage_is_not_trained_again(tmp_path, monkeypatch):
    # With checkpoints as rare as ever: all this takes less than a minute.
    real, epochs = ShuffledBatches.__iter__, []

    def interrupted(self):
        epochs.append(1)
        if len(epochs) == WARM + 1:
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(ShuffledBatches, "__iter__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained(TINY, tmp_path)
    trained(TINY, tmp_path, resume=True)
    assert len(epochs) == WARM + 1 + TINY.training.epochs


class Seen:
    def __init__(self):
        self.epochs: list[int] = []

    def step(self, epoch, step, terms):
        pass

    def epoch(self, record):
        self.epochs.append(record.epoch)

    def note(self, text):
        self.epochs.append(-1)


def test_both_stages_are_shown_one_behind_the_other(tmp_path):
    display = Seen()
    result = trained(TINY.with_settings(epochs=2), tmp_path, progress=display)
    assert display.epochs == [1, 2, 3, 4, 5]
    assert TINY.with_settings(epochs=2).all_epochs == 5
    assert first_config(TINY).all_epochs == WARM
    # The record has the second stage's history and both stages' time.
    assert len(result.history) == 2
    assert result.effort["seconds"] > sum(epoch.seconds for epoch in result.history)
    Later(display, 3).note("")
    assert display.epochs[-1] == -1


def test_generated_weights_start_around_others_only_with_a_spread():
    with pytest.raises(ConfigError, match="spread > 0"):
        plan(
            "cifar5",
            variants=["bbh"],
            preset="paper",
            settings=["warm_start_epochs=3"],
        )


def test_fan_in_priors_are_narrower_for_wider_layers():
    def make_network() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(100, 2))

    shapes = {name: value.shape for name, value in make_network().named_parameters()}
    prior = GaussianPrior("fan_in", 2.0).make().for_shapes(shapes)
    scales = {"0.weight": 2 / 27**0.5, "0.bias": 2 / 27**0.5, "2.weight": 0.2, "2.bias": 0.2}
    for name, scale in scales.items():
        normal = prior.normal(name)
        assert normal is not None
        assert normal.scale == pytest.approx(scale)
    posterior = OTHERS["bbb"].build_posterior(make_network)
    assert posterior.prior.normal("2.bias").scale == pytest.approx(0.1)
