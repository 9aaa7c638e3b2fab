"""CIFAR5: five classes of CIFAR-10 to learn, the other five as outliers, and a deep network."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from bbh_studies.datasets import ImageData, load_cifar5
from bbh_studies.datasets.cifar5 import NUM_CLASSES, NUM_TRAIN, NUM_VALIDATION
from bbh_studies.problems import mnist
from bbh_studies.problems.cifar5.resnet import (
    NORMALISATIONS,
    PAPER_SIZE,
    PaperResNet,
    ResNet,
    StandardisedConv2d,
    Units,
)
from bbh_studies.problems.images.augmentation import Augmentation
from bbh_studies.problems.images.problem import ImageProblem
from bbh_studies.problems.study import Rows, Study, attacks_on
from bbh_studies.settings.config import Config
from bbh_studies.settings.gaussian_prior import GaussianPrior
from bbh_studies.settings.hypernets import DEFAULT_HYPERNET, WIDER_HYPERNET, Mixture
from bbh_studies.settings.method import Method
from bbh_studies.settings.methods import (
    BayesByBackprop,
    DeepEnsemble,
    Dropout,
    Flows,
    MaximumAPosteriori,
)
from bbh_studies.settings.optimisation import Optimisation
from bbh_studies.settings.words import check_word


@dataclass(frozen=True)
class Cifar5(ImageProblem):
    """Small photographs of ten classes: five to learn, the other five as outliers.

    Attributes:
        network: he, or paper for the one in the paper's code.
        blocks: Residual units per stage; five make 32 layers.
        width: Channels in the first stage.
        normalisation: group, filter_response, batch, instance or batch_statistics.
        standardised_kernels: Bring every filter of He's network to mean 0 and variance 1 before
            its use.
        final_norm: Normalise before the last layer of the paper's network.
        dropout_placement: Where residual units have dropout layers, if the method wants them:
            unit, between their two convolutions; or convolutions, after every convolution.
        augmentation: none, crops (and flips), or distorted, which changes brightness and contrast
            as well.
    """

    num_train = NUM_TRAIN
    num_validation = NUM_VALIDATION
    # Levels of a pixel, doubling. Photographs carry their classes in small differences: at the
    # first of MNIST's sizes, 13 levels, a network that was not trained against attacks gets hardly
    # an image right, so most of what there is to see is at smaller sizes.
    attack_sizes = tuple(levels / 255 for levels in (0, 1, 2, 4, 8, 16, 32))
    # The first classes of CIFAR-10.
    class_names = ("airplane", "automobile", "bird", "cat", "deer")
    network: str = "he"
    blocks: int = 5
    width: int = 16
    normalisation: str = "group"
    standardised_kernels: bool = False
    final_norm: bool = True
    dropout_placement: str = "unit"
    augmentation: str = "none"

    def make_network(self, dropout: float | None = None) -> nn.Module:
        """A residual network."""
        rate = dropout or 0.0
        once = self.dropout_placement == "unit"
        units = Units(
            norm=NORMALISATIONS[self.normalisation],
            unit_dropout=rate if once else 0.0,
            convolution_dropout=0.0 if once else rate,
            convolution=StandardisedConv2d if self.standardised_kernels else nn.Conv2d,
        )
        size = (NUM_CLASSES, self.blocks, self.width)
        if self.network == "paper":
            return PaperResNet(*size, units, self.final_norm)
        return ResNet(*size, units)

    def load(self, folder: Path | None) -> ImageData:
        """Reads CIFAR-10 and divides its classes."""
        return load_cifar5(folder)

    def count_steps(self, batch_size: int) -> int:
        """Steps of an epoch; there are fewer on the validation split.

        The paper sets no images aside, so validation images are taken away from training.
        """
        aside = NUM_VALIDATION if self.split == "validation" else 0
        return (NUM_TRAIN - aside) // batch_size

    def make_augmentation(self, side: int) -> Augmentation | None:
        """The augmentation by its name."""
        if self.augmentation == "none":
            return None
        # The paper's code crops images with a border of two pixels; a border of four is usual.
        size, padding = (PAPER_SIZE, 2) if self.network == "paper" else (side, 4)
        if self.augmentation == "crops":
            return Augmentation(size, padding)
        return Augmentation(size, padding, brightness=63 / 255, contrast=(0.2, 1.8))

    def check(self) -> None:
        """Raises if a setting's value is not one of the known words."""
        super().check()
        check_word("network", self.network, ("he", "paper"))
        check_word("normalisation", self.normalisation, NORMALISATIONS)
        check_word("dropout_placement", self.dropout_placement, ("unit", "convolutions"))
        check_word("augmentation", self.augmentation, ("none", "crops", "distorted"))


def _papers(method: str, **settings: object) -> Config:
    """The paper's MNIST run of a method, with 200 epochs and the settings that are given.

    The paper's text hardly describes these runs. What the code of all methods agrees on is in the
    problem: the network, distorted 24×24 crops, and one norm.
    """
    problem = Cifar5(network="paper", normalisation="instance", augmentation="distorted")
    return replace(mnist.PAPER[method], problem=problem).with_settings(epochs=200, **settings)


_PAPER: Rows = {
    "map": _papers("map"),
    # The authors' 0.01 is in standard deviations of an image, about a quarter of the range each.
    "ensemble": _papers("ensemble", num_members=5, adversarial_epsilon=0.0025),
    # A log variance of −30 at the start: with wider posteriors it did not train.
    "bbb": _papers("bbb", initial_scale=math.exp(-15)),
    "dropout": _papers("dropout"),
    # The complexity is annealed between epochs 20 and 35.
    "mnf": _papers("mnf", max_scale=0.3, anneal_start=20, anneal_end=35),
    "bbh": _papers("bbh", anneal_start=20, anneal_end=35),
}
# What the authors' code of May 2018 does: each method has norms of its own, see ``resnet``.
_LEGACY: Rows = {
    "map": _PAPER["map"].with_settings(penalised="kernels"),
    "ensemble": _PAPER["ensemble"],
    "bbb": _PAPER["bbb"].with_settings(final_norm=False),
    # The published number is of dropout after every convolution.
    "dropout": _PAPER["dropout"].with_settings(
        penalised="kernels", dropout_placement="convolutions"
    ),
    "mnf": _PAPER["mnf"].with_settings(
        final_norm=False, penalised="dense", prior_scale=math.exp(0.5)
    ),
    "bbh": _PAPER["bbh"].with_settings(
        final_norm=False, normalisation="batch_statistics", optimizer="rmsprop_tf"
    ),
}
# He's network with group norm and standardised filters, on whole images; thirty epochs.
_HE = Cifar5(standardised_kernels=True, augmentation="crops")
_TRAINING = Optimisation(epochs=30, learning_rate=3e-3, cosine_decay=True, precision="bf16-mixed")


def _variational(method: Method) -> Config:
    """A row that starts around MAP weights and is trained at a low temperature.

    Ten of the thirty epochs find these weights. At full weight the complexity of 462,000 weights
    would outweigh 25,000 images; this temperature leaves the data some influence. It was chosen on
    the validation split, for Bayes by Hypernet, among few values.
    """
    return Config(method, _HE, _TRAINING, GaussianPrior(prior="fan_in")).with_settings(
        epochs=20, warm_start_epochs=10, temperature=3e-3
    )


_HYPERNET = replace(WIDER_HYPERNET, spread=0.03, noise_dim=8, noise_shared=False)
_CORRECTED: Rows = {
    "map": Config(MaximumAPosteriori(), _HE, _TRAINING),
    "ensemble": Config(DeepEnsemble(num_members=5), _HE, _TRAINING),
    "bbb": _variational(BayesByBackprop(initial_scale=1e-3)),
    # A low rate: switching off half of the units would be too much for so narrow a network.
    "dropout": Config(Dropout(dropout_layers=True, dropout_rate=0.1), _HE, _TRAINING),
    "mnf": _variational(Flows(max_scale=0.3)),
    "bbh": _variational(_HYPERNET),
    # Members have narrower generators and more epochs than the posterior alone. With its twenty
    # they were no better than an ensemble of five, and both were less sure than they were right;
    # longer training makes members surer.
    "mixture": _variational(
        Mixture.of(replace(_HYPERNET, likelihood_samples=1, hidden=DEFAULT_HYPERNET.hidden))
    ).with_settings(epochs=50),
}
# Shows what the complexity does to a deep network at full weight and at parts of it.
_TEMPERATURES = (1.0, 0.1, 0.01, 1e-3)
_COMPARISON = Study(
    name="cifar5",
    title="CIFAR5",
    presets={"paper": _PAPER, "legacy": _LEGACY, "corrected": _CORRECTED},
)
STUDIES = (
    _COMPARISON,
    Study(
        name="cifar5-temperatures",
        title="CIFAR5: weight of the complexity",
        presets={
            "corrected": {
                f"temperature-{one:g}": _CORRECTED["bbh"].with_settings(temperature=one)
                for one in _TEMPERATURES
            }
        },
        row_titles={f"temperature-{one:g}": f"Temperature {one:g}" for one in _TEMPERATURES},
    ),
    attacks_on(_COMPARISON),
)
