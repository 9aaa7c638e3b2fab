"""The base of the problems with images."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from bbh.likelihoods import Categorical, Likelihood
from bbh_studies.datasets import ImageData
from bbh_studies.problems.images.augmentation import Augmentation
from bbh_studies.problems.problem import Problem, Runner
from bbh_studies.settings.words import check_word


@dataclass(frozen=True)
class ImageProblem(Problem):
    """Images of classes to learn, and outliers that belong to none of them.

    Attributes:
        num_train: Number of training images.
        num_validation: Number of images on which settings are chosen.
        split: test, or validation for choosing settings: then no test image and no outlier of the
            test is looked at.
    """

    columns = (
        "AUC: area under the distribution of the predictive entropy, in: high is good, out: low "
        "is good. AUROC: how well entropy tells outliers from data; 0.5 is chance."
    )
    num_train: ClassVar[int]
    num_validation: ClassVar[int]
    split: str = "test"

    @abstractmethod
    def load(self, folder: Path | None) -> ImageData:
        """Reads the images of both splits."""

    def likelihood(self) -> Likelihood[Any]:
        """A categorical distribution over the classes."""
        return Categorical()

    def count_steps(self, batch_size: int) -> int:
        """The number of whole batches; a smaller last batch is left out."""
        return self.num_train // batch_size

    def make_augmentation(self, side: int) -> Augmentation | None:
        """How training images are changed at random; None for not at all.

        Args:
            side: Pixels along a side of an image.
        """
        return None

    def on_split(self, data: ImageData) -> ImageData:
        """The data of the chosen split; its images to measure on are in ``test_images``."""
        return data.for_choosing() if self.split == "validation" else data

    def runner(self, folder: Path | None) -> Runner:
        """Reads the images, and returns what trains and measures on them."""
        # Imported only here: training imports Lightning Fabric, which takes seconds that nobody
        # should wait for with --help or when a shell completes a word.
        from bbh_studies.problems.images.train_and_measure import train_and_measure

        return partial(train_and_measure, data=self.load(folder))

    def attacker(self, folder: Path | None) -> Runner:
        """Reads the images, and returns what attacks posteriors on the test images."""
        from bbh_studies.problems.images.attack import attack

        return partial(attack, data=self.load(folder))

    def inputs(self, folder: Path | None) -> Tensor:
        """The images to measure on."""
        return self.on_split(self.load(folder)).test_images

    def check(self) -> None:
        """Raises if there is no such split."""
        check_word("split", self.split, ("test", "validation"))
