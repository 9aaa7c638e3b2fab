"""MNIST with notMNIST as outliers, split as in the paper."""

from pathlib import Path

from torch import Tensor

from bbh_studies.datasets.base import ImageData
from bbh_studies.datasets.sources import MNIST, NOTMNIST, data_dir_or_environment, fingerprint

# TensorFlow's tutorial loader, which the paper's code uses, sets the first 5,000 images aside.
NUM_TRAIN, NUM_VALIDATION = 55_000, 5_000


def load_mnist(data_dir: Path | None = None) -> ImageData:
    """55,000 training, 5,000 validation, 10,000 test images, and 10,000 glyphs A to J."""
    folder = data_dir_or_environment(data_dir)
    train_images, train_labels, test_images, test_labels = (
        source.read(folder) for source in MNIST.values()
    )
    outliers = NOTMNIST["t10k-images-idx3-ubyte"].read(folder)
    return ImageData(
        name="MNIST",
        outlier_name="notMNIST",
        train_images=_pixels(train_images[NUM_VALIDATION:]),
        train_labels=train_labels[NUM_VALIDATION:].long(),
        validation_images=_pixels(train_images[:NUM_VALIDATION]),
        validation_labels=train_labels[:NUM_VALIDATION].long(),
        test_images=_pixels(test_images),
        test_labels=test_labels.long(),
        outlier_images=_pixels(outliers),
        fingerprint=fingerprint(train_images, train_labels, test_images, test_labels, outliers),
    )


def _pixels(images: Tensor) -> Tensor:
    return images.unsqueeze(1).float() / 255
