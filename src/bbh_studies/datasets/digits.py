"""scikit-learn's 8×8 digits with drawn letters as outliers: nothing to download."""

from typing import Any

import torch

from bbh_studies.datasets.base import ImageData
from bbh_studies.datasets.letters import draw_letters
from bbh_studies.datasets.sources import fingerprint

NUM_TRAIN, NUM_VALIDATION = 1_097, 200


def load_digits() -> ImageData:
    """1,097 training, 200 validation and 500 test digits, and 500 letters; always the same."""
    # Imported only here: it takes a second, and a command that loads no digits need not wait.
    from sklearn.datasets import load_digits as load_from_sklearn

    bunch: Any = load_from_sklearn()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(bunch.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, validation, test = order.split(
        [NUM_TRAIN, NUM_VALIDATION, len(order) - NUM_TRAIN - NUM_VALIDATION]
    )
    letters = draw_letters(len(test), size=8)
    return ImageData(
        name="digits",
        outlier_name="letters",
        train_images=images[train],
        train_labels=labels[train],
        validation_images=images[validation],
        validation_labels=labels[validation],
        test_images=images[test],
        test_labels=labels[test],
        outlier_images=letters,
        fingerprint=fingerprint(images, labels, letters),
    )
