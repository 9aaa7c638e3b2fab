"""What a classification study needs of its data."""

from dataclasses import dataclass, replace

from torch import Tensor

from bbh.studies.datasets.letters import draw_letters


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

    def for_choosing(self) -> "ImageData":
        """The same with what settings may be chosen on in the place of what results are told on.

        Validation images for test images, and for the outliers, of which there is no second set,
        letters drawn from Matplotlib's fonts with a seed of their own.
        """
        return replace(
            self,
            name=f"{self.name} validation",
            outlier_name="letters",
            test_images=self.validation_images,
            test_labels=self.validation_labels,
            outlier_images=draw_letters(
                len(self.validation_images), size=self.test_images.shape[-1], seed=1
            ),
        )
