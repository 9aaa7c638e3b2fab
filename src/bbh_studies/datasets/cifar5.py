"""CIFAR5: five classes of CIFAR-10 to learn, the other five as outliers."""

from pathlib import Path

import torch
from torch import Tensor

from bbh_studies.datasets.base import ImageData
from bbh_studies.datasets.cifar10 import CIFAR10
from bbh_studies.datasets.sources import data_dir_or_environment, fingerprint

# The first five: airplane, automobile, bird, cat and deer.
NUM_CLASSES = 5
NUM_TRAIN, NUM_VALIDATION = 25_000, 2_500
# Validation images are the last tenth of every class's training images.
_VALIDATION_SHARE = NUM_TRAIN // NUM_VALIDATION


def load_cifar5(data_dir: Path | None = None) -> ImageData:
    """25,000 training and 5,000 test images of five classes, and 5,000 of the others.

    The paper sets no validation images aside, so all 25,000 are for training. Settings are chosen
    on the last tenth of every class in the training files, without training on it.
    """
    data = CIFAR10.read(data_dir_or_environment(data_dir))
    inside, outside = (
        _split_classes(data.train_labels, labels)
        for labels in (range(NUM_CLASSES), range(NUM_CLASSES, 10))
    )
    order = torch.cat(inside)
    test_inside = data.test_labels < NUM_CLASSES
    train_images, train_labels = _pixels(data.train_images[order]), data.train_labels[order].long()
    number = len(inside[1])
    return ImageData(
        name="CIFAR5",
        outlier_name="CIFAR-10's other classes",
        train_images=train_images,
        train_labels=train_labels,
        validation_images=train_images[-number:],
        validation_labels=train_labels[-number:],
        test_images=_pixels(data.test_images[test_inside]),
        test_labels=data.test_labels[test_inside].long(),
        outlier_images=_pixels(data.test_images[~test_inside]),
        fingerprint=fingerprint(
            data.train_images, data.train_labels, data.test_images, data.test_labels
        ),
        validation_outliers=_pixels(data.train_images[outside[1]]),
        validation_in_train=True,
        pixels="" if data.is_publishers else "not the publisher's: a recoded copy",
    )


def _split_classes(labels: Tensor, classes: range) -> tuple[Tensor, Tensor]:
    """Indices of some classes' images: those to train on, and the last tenth of each class."""
    train: list[Tensor] = []
    validation: list[Tensor] = []
    for label in classes:
        of_class = (labels == label).nonzero().flatten()
        number = len(of_class) // _VALIDATION_SHARE
        train.append(of_class[: len(of_class) - number])
        validation.append(of_class[len(of_class) - number :])
    return torch.cat(train), torch.cat(validation)


def _pixels(images: Tensor) -> Tensor:
    return images.float() / 255
