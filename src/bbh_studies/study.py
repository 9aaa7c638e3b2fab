"""What studies differ in: network, likelihood and data. Everything else is written once."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from bbh.likelihoods import Categorical, Gaussian, Likelihood
from bbh_studies.config import Config
from bbh_studies.datasets import ImageData, load_cifar5, load_digits, load_mnist
from bbh_studies.datasets.cifar5 import NUM_CLASSES
from bbh_studies.datasets.cifar5 import NUM_TRAIN as NUM_CIFAR5
from bbh_studies.datasets.cifar5 import NUM_VALIDATION as NUM_CIFAR5_VALIDATION
from bbh_studies.datasets.digits import NUM_TRAIN as NUM_DIGITS
from bbh_studies.datasets.mnist import NUM_TRAIN as NUM_MNIST
from bbh_studies.legacy import DropoutLeNet
from bbh_studies.networks import LeNet, digits_network, toy_network
from bbh_studies.resnet import NORMALISATIONS, PaperResNet, ResNet, StandardisedConv2d, Units


@dataclass(frozen=True)
class Study:
    """One problem, the same for all methods.

    Attributes:
        make_network: A freshly initialised one, as the settings describe it.
        likelihood: How targets arise from its outputs.
        steps_per_epoch: Optimiser steps in a pass over the training data, which are not read.
        load: Reads the images from a folder, or from the cache for None; None where there are
            no images.
        attack_sizes: Largest change of a pixel from 0 to 1 that attacks are allowed, rising from
            0; empty where nothing is attacked.
    """

    make_network: Callable[[Config], nn.Module]
    likelihood: Callable[[Config], Likelihood[Any]]
    steps_per_epoch: Callable[[Config], int]
    load: Callable[[Path | None], ImageData] | None = None
    attack_sizes: tuple[float, ...] = ()


def study_of(name: str) -> Study:
    """A study by its name; comparisons such as mnist-noise share the problem they begin with."""
    return _STUDIES[name.partition("-")[0]]


def attacked_study(name: str) -> str | None:
    """The study whose posteriors this one attacks; None for one that attacks nothing.

    >>> attacked_study("mnist-attacks"), attacked_study("mnist-noise")
    ('mnist', None)
    """
    study, _, what = name.partition("-")
    return study if what == "attacks" else None


def _lenet(config: Config) -> nn.Module:
    return DropoutLeNet(config.dropout_rate) if config.wants_dropout_layers else LeNet()


def _resnet(config: Config) -> nn.Module:
    rate = config.dropout_rate if config.wants_dropout_layers else 0.0
    once = config.dropout_placement == "unit"
    units = Units(
        norm=NORMALISATIONS[config.normalisation],
        unit_dropout=rate if once else 0.0,
        convolution_dropout=0.0 if once else rate,
        convolution=StandardisedConv2d if config.standardised_kernels else nn.Conv2d,
    )
    size = (NUM_CLASSES, config.blocks, config.width)
    if config.network == "paper":
        return PaperResNet(*size, units, config.final_norm)
    return ResNet(*size, units)


def _cifar5_steps(config: Config) -> int:
    # The paper sets no images aside: choosing takes some away from training.
    aside = NUM_CIFAR5_VALIDATION if config.split == "validation" else 0
    return (NUM_CIFAR5 - aside) // config.batch_size


def _classification(config: Config) -> Likelihood[Any]:
    return Categorical()


_STUDIES = {
    "toy": Study(
        make_network=lambda config: toy_network(),
        likelihood=lambda config: Gaussian(config.noise_scale),
        steps_per_epoch=lambda config: config.steps_per_epoch,
    ),
    "digits": Study(
        make_network=lambda config: digits_network(),
        likelihood=_classification,
        steps_per_epoch=lambda config: NUM_DIGITS // config.batch_size,
        load=lambda folder: load_digits(),
    ),
    "mnist": Study(
        make_network=_lenet,
        likelihood=_classification,
        steps_per_epoch=lambda config: NUM_MNIST // config.batch_size,
        load=load_mnist,
        # The paper's: pen strokes are black or white, and shades between them mean little.
        attack_sizes=tuple(step / 20 for step in range(9)),
    ),
    "cifar5": Study(
        make_network=_resnet,
        likelihood=_classification,
        steps_per_epoch=_cifar5_steps,
        load=load_cifar5,
        # Levels of a pixel, doubling. Photographs carry their classes in small differences: the
        # first of MNIST's sizes, 13 levels, leaves a network that was not trained against attacks
        # hardly an image, so most of what there is to see lies below it.
        attack_sizes=tuple(levels / 255 for levels in (0, 1, 2, 4, 8, 16, 32)),
    ),
}
