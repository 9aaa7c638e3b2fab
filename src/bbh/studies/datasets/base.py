"""What a classification study needs of its data."""

from dataclasses import dataclass, replace
from typing import Any

import torch
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

    def to(self, device: torch.device) -> "ImageData":
        """All tensors on another device: small data sets stay there for the whole run."""
        moved: dict[str, Any] = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)
