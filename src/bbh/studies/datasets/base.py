"""What a classification study needs of its data."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ImageData:
    """Images [B, 1, H, W] in [0, 1] and labels, split for training, choosing and reporting.

    Attributes:
        name: The in-distribution data set.
        outlier_name: The other one.
        fingerprint: Of all arrays, for records.
    """

    name: str
    outlier_name: str
    train_images: Tensor
    train_labels: Tensor
    validation_images: Tensor
    validation_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    outlier_images: Tensor
    fingerprint: str
