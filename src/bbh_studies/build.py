"""From a configuration's words to the library's objects."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

import bbh
from bbh import divergences, generators, methods
from bbh.annealing import Schedule
from bbh.divergences.base import check_num_samples
from bbh.likelihoods import Likelihood
from bbh.network import fan_in, select_bayesian, trainable_parameters
from bbh.priors import Normal, PerLayer, Prior
from bbh.samples import Shapes
from bbh.training import make_adam
from bbh_studies import legacy
from bbh_studies.config import Config, ConfigError
from bbh_studies.resnet import NORMALISATIONS


def build_posterior(
    config: Config, make_network: Callable[[], nn.Module], likelihood: Likelihood[Any]
) -> bbh.Posterior[Any]:
    """The posterior a configuration describes, over a freshly initialised network."""
    build = _choice("method", config.method, _METHODS)
    return build(config, make_network, likelihood, build_prior(config, make_network))


def build_prior(config: Config, make_network: Callable[[], nn.Module]) -> Prior:
    """A Gaussian for every weight; its width may depend on the tensor."""
    if config.prior == "normal":
        return Normal(config.prior_scale)
    shapes = bayesian_shapes(config, make_network())
    return PerLayer(
        {name: Normal(config.prior_scale / math.sqrt(fan_in(name, shapes))) for name in shapes}
    )


def bayesian_shapes(config: Config, network: nn.Module) -> Shapes:
    """The parameters that get a distribution."""
    parameters = trainable_parameters(network)
    chosen = select_bayesian(network, config.bayesian or None)
    return {name: parameters[name].shape for name in chosen}


def check_words(config: Config) -> None:
    """Raises if a word of a configuration stands for nothing, before anything is built."""
    if config.method == "nuts":
        return
    for field, choices in _WORDS.items():
        _choice(field, getattr(config, field), choices)
    build_generator(config)
    if config.starts_warm and config.method == "bbh" and not config.spread:
        raise ConfigError(
            "warm_start_epochs: generated weights start around others only with spread > 0."
        )
    if config.method in ("bbb", "bbh"):
        check_num_samples(build_divergence(config), config.num_samples)


def build_optimizer(
    config: Config, posterior: bbh.Posterior[Any]
) -> Callable[[Iterable[nn.Parameter]], Optimizer]:
    """Makes the optimiser; its ε is the paper's code's."""
    chosen = _choice("optimizer", config.optimizer, _OPTIMIZERS)
    return partial(chosen(posterior), lr=config.learning_rate, eps=1e-5)


def build_scheduler(config: Config) -> Callable[[Optimizer], LRScheduler] | None:
    """Makes the learning-rate schedule, one step per epoch."""
    return partial(CosineAnnealingLR, T_max=config.epochs) if config.cosine_decay else None


def build_beta(config: Config, num_data: int, steps_per_epoch: int) -> float | Schedule:
    """Annealing of the complexity."""
    if config.falling_beta:
        # The authors' KL is not divided by N, ours is.
        return lambda epoch: num_data * legacy.falling_beta(epoch * steps_per_epoch)
    if config.anneal_end == 0:
        return 1.0
    return bbh.Linear(config.anneal_start, config.anneal_end)


def build_divergence(config: Config) -> divergences.Divergence:
    """The divergence by its name."""
    return _choice("divergence", config.divergence, _DIVERGENCES)(config)


def build_generator(config: Config) -> generators.Generator:
    """The generator by its name."""
    start = generators.FromNetwork(config.spread) if config.spread else generators.Glorot()
    recipe = _choice("generator", config.generator, _GENERATORS)
    return recipe(hidden=config.hidden, initialization=start)


def _map(config: Config, make: Any, likelihood: Any, prior: Prior) -> bbh.Posterior[Any]:
    network = make()
    penalised = _penalised(config, kernels=legacy.kernel_names(network))
    if penalised is not None:
        return legacy.point_estimate(network, likelihood, prior, penalised=penalised)
    return methods.maximum_a_posteriori(
        network, likelihood, prior, bayesian=config.bayesian or None
    )


def _ensemble(config: Config, make: Any, likelihood: Any, prior: Prior) -> bbh.Posterior[Any]:
    epsilon = config.adversarial_epsilon
    return methods.deep_ensemble(
        make(),
        likelihood,
        prior,
        num_members=config.num_members,
        make_network=make,
        adversarial=bbh.AdversarialTraining(epsilon) if epsilon else None,
        bayesian=config.bayesian or None,
    )


def _bbb(config: Config, make: Any, likelihood: Any, prior: Prior) -> bbh.Posterior[Any]:
    return methods.bayes_by_backprop(
        make(),
        likelihood,
        prior,
        initial_scale=config.initial_scale,
        divergence=build_divergence(config),
        num_samples=config.num_samples,
        bayesian=config.bayesian or None,
    )


def _dropout(config: Config, make: Any, likelihood: Any, prior: Prior) -> bbh.Posterior[Any]:
    network = make()
    if not config.dropout_layers:
        return methods.mc_dropout(
            network,
            likelihood,
            prior,
            rate=config.dropout_rate,
            bayesian=config.bayesian or None,
        )
    if not legacy.dropout_names(network):
        raise ConfigError("dropout_layers=true: this study's network has no place for them.")
    penalised = _penalised(config, kernels=legacy.kernel_names(network))
    if penalised is not None:
        return legacy.point_estimate(network, likelihood, prior, penalised=penalised)
    return methods.mc_dropout(network, likelihood, prior, bayesian=config.bayesian or None)


def _mnf(config: Config, make: Any, likelihood: Any, prior: Prior) -> bbh.Posterior[Any]:
    network = make()
    penalised = _penalised(config, dense=legacy.dense_names(network))
    flows = (
        partial(methods.multiplicative_normalizing_flows, bayesian=config.bayesian or None)
        if penalised is None
        else partial(legacy.flows, penalised=penalised)
    )
    return flows(
        network,
        likelihood,
        prior,
        initial_scale=config.initial_scale,
        max_scale=config.max_scale,
    )


def _bbh(config: Config, make: Any, likelihood: Any, prior: Prior) -> bbh.Posterior[Any]:
    return methods.bayes_by_hypernet(
        make(),
        likelihood,
        prior,
        generator=build_generator(config),
        noise=bbh.GaussianNoise(config.noise_dim, config.noise_shared),
        divergence=build_divergence(config),
        num_samples=config.num_samples,
        bayesian=config.bayesian or None,
    )


_METHODS = {
    "map": _map,
    "ensemble": _ensemble,
    "bbb": _bbb,
    "dropout": _dropout,
    "mnf": _mnf,
    "bbh": _bbh,
}
_OPTIMIZERS: dict[str, Callable[[bbh.Posterior[Any]], Any]] = {
    "adam": lambda posterior: partial(make_adam, posterior.weights),
    "rmsprop": lambda _: partial(torch.optim.RMSprop, alpha=0.9),
    "rmsprop_tf": lambda _: legacy.TensorFlowRMSprop,
}
_GENERATORS = {
    "layerwise": generators.LayerWise,
    "sliced": generators.Sliced,
    "single": generators.Single,
}
_DIVERGENCES: dict[str, Callable[[Config], divergences.Divergence]] = {
    "closed_form": lambda config: divergences.ClosedForm(),
    "nearest_neighbour": lambda config: divergences.NearestNeighbour(config.prior_samples or None),
    "joint": lambda config: divergences.JointNearestNeighbour(config.prior_samples or None),
    "entropy": lambda config: divergences.NearestNeighbourEntropy(config.neighbours),
    "adversarial": lambda config: divergences.Adversarial(steps=config.critic_steps),
}


def _words(*words: str) -> dict[str, None]:
    return dict.fromkeys(words)


_WORDS: dict[str, dict[str, Any]] = {
    "method": _METHODS,
    "optimizer": _OPTIMIZERS,
    "generator": _GENERATORS,
    "divergence": _DIVERGENCES,
    "split": _words("test", "validation"),
    "prior": _words("normal", "fan_in"),
    # A loss scaler, which 16-mixed would need, goes together with no recorded step.
    "precision": _words("32-true", "bf16-mixed"),
    "network": _words("he", "paper"),
    "normalisation": NORMALISATIONS,
    "dropout_placement": _words("unit", "convolutions"),
    "augmentation": _words("none", "crops", "distorted"),
}


def _penalised(config: Config, **parts: list[str]) -> list[str] | None:
    """Names of the tensors under the prior, which ``parts`` offers by a word; None for all."""
    return _choice("penalised", config.penalised, {"all": None, **parts})


def _choice(field: str, word: str, choices: dict[str, Any]) -> Any:
    if word not in choices:
        raise ConfigError(f"{field}={word}: choose one of {', '.join(choices)}.")
    return choices[word]
