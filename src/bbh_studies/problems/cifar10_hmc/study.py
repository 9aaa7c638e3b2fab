"""How far approximate posteriors are from the posterior, on a network of real size.

Izmailov et al. (2021) sampled the posterior of ResNet-20 on CIFAR-10 by full-batch Hamiltonian
Monte Carlo. Every row here has their network, likelihood and prior, the same for all parameters,
and no augmentation, which has no place in that posterior; what differs is the approximation.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bbh.likelihoods import Categorical, Likelihood
from bbh_studies.datasets.cifar10_hmc import (
    NUM_CLASSES,
    NUM_TRAIN,
    NUM_VALIDATION,
    Cifar10HmcData,
    load_cifar10_hmc,
)
from bbh_studies.problems.cifar10_hmc.network import FilterResponseResNet
from bbh_studies.problems.problem import Problem, Runner
from bbh_studies.problems.study import Rows, Study
from bbh_studies.settings.config import Config
from bbh_studies.settings.gaussian_prior import GaussianPrior
from bbh_studies.settings.hypernets import DEFAULT_HYPERNET, Mixture
from bbh_studies.settings.method import Method
from bbh_studies.settings.methods import (
    BayesByBackprop,
    DeepEnsemble,
    Dropout,
    Flows,
    HamiltonianMonteCarlo,
    MaximumAPosteriori,
)
from bbh_studies.settings.optimisation import Optimisation
from bbh_studies.settings.words import check_word


@dataclass(frozen=True)
class Cifar10Hmc(Problem):
    """All classes of CIFAR-10, and HMC's predictions for its test images.

    Attributes:
        blocks: Residual units per stage; three make the 20 layers that HMC sampled.
        width: Channels in the first stage; HMC's network has 16.
        split: test, or validation for choosing settings: then no test image and no prediction of
            HMC is looked at.
    """

    columns = (
        "agree: share of test images with HMC's label. TV: mean total variation from HMC's "
        "probabilities, 0 where they are equal."
    )
    class_names = (
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    )
    blocks: int = 3
    width: int = 16
    split: str = "test"

    @property
    def knows_reference(self) -> bool:
        """Only on test images: HMC's predictions for others were not published."""
        return self.split == "test"

    def make_network(self, dropout: float | None = None) -> nn.Module:
        """ResNet-20 with filter-response norm and swish."""
        return FilterResponseResNet(NUM_CLASSES, self.blocks, self.width, dropout or 0.0)

    def likelihood(self) -> Likelihood[Any]:
        """A categorical distribution over the classes."""
        return Categorical()

    def count_steps(self, batch_size: int) -> int:
        """The number of whole batches; there are fewer on the validation split."""
        aside = NUM_VALIDATION if self.split == "validation" else 0
        return (NUM_TRAIN - aside) // batch_size

    def runner(self, folder: Path | None) -> Runner:
        """Reads the data, and returns what trains and measures on them."""
        # Imported only here: see ``ImageProblem.runner``.
        from bbh_studies.problems.cifar10_hmc.train_and_measure import train_and_measure

        return partial(train_and_measure, data=load_cifar10_hmc(folder))

    def on_split(self, data: Cifar10HmcData) -> Cifar10HmcData:
        """The data of the chosen split; its images to measure on are in ``test_images``."""
        return data.for_choosing() if self.split == "validation" else data

    def inputs(self, folder: Path | None) -> Tensor:
        """The images to measure on."""
        return self.on_split(load_cifar10_hmc(folder)).test_images

    def check(self) -> None:
        """Raises if there is no such split."""
        check_word("split", self.split, ("test", "validation"))


_TRAINING = Optimisation(
    epochs=30, batch_size=250, learning_rate=3e-3, cosine_decay=True, precision="bf16-mixed"
)
# HMC's: N(0, 1/5) for every parameter, those of norms included.
_PRIOR = GaussianPrior(prior_scale=math.sqrt(1 / 5), bayesian=("*",))


def _row(method: Method) -> Config:
    return Config(method, Cifar10Hmc(), _TRAINING, _PRIOR)


def _variational(method: Method) -> Config:
    """A row that starts around MAP weights, for which ten of the thirty epochs are spent.

    HMC sampled at temperature 1. These rows have a lower one: at full weight the complexity of
    274,042 parameters outweighs 50,000 images, and what is left is far from every solution. At this
    one, the highest that was tried, Bayes by Hypernet is well calibrated on the validation split.
    """
    return _row(method).with_settings(epochs=20, warm_start_epochs=10, temperature=0.1)


_HYPERNET = replace(DEFAULT_HYPERNET, spread=0.03, noise_dim=8, noise_shared=False)
# Members are colder than the posterior alone: a mixture's doubts are those of its members and the
# differences between them together.
_MIXTURE = _variational(Mixture.of(replace(_HYPERNET, likelihood_samples=1))).with_settings(
    temperature=0.03
)
_ROWS: Rows = {
    "map": _row(MaximumAPosteriori()),
    "ensemble": _row(DeepEnsemble(num_members=5)),
    "bbb": _variational(BayesByBackprop()),
    # A low rate, as on CIFAR5: switching off half of the units would be too much for so narrow a
    # network.
    "dropout": _row(Dropout(dropout_layers=True, dropout_rate=0.1)),
    "mnf": _variational(Flows()),
    "bbh": _variational(_HYPERNET),
    "mixture": _MIXTURE,
    "hmc": _row(HamiltonianMonteCarlo()),
}
STUDIES = (
    Study(
        name="cifar10-hmc",
        title="CIFAR-10: distance from HMC",
        presets={"corrected": _ROWS},
    ),
)
