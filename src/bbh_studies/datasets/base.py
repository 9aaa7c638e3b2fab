"""The data of a classification study."""

from dataclasses import dataclass, replace

from torch import Tensor

from bbh_studies.datasets.letters import draw_letters


@dataclass(frozen=True)
class ImageData:
    """Images [B, C, H, W] in [0, 1] and labels, split for training, choosing and reporting.

    Attributes:
        name: The in-distribution data set.
        outlier_name: The data set of outliers.
        fingerprint: Short checksum of all arrays, for records.
        validation_outliers: Outliers for choosing settings: images of other classes that are not
            test images. If None, letters are drawn.
        validation_in_train: Whether the validation images are the last training images, which
            ``for_choosing`` then takes away from training.
        pixels: Where the pixels come from, if they are known not to be the publisher's; else empty.
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
    validation_outliers: Tensor | None = None
    validation_in_train: bool = False
    pixels: str = ""

    @property
    def shows_digits(self) -> bool:
        """Whether images are grey ones of digits, which look like others if rotated or mixed."""
        return self.train_images.shape[1] == 1

    def for_choosing(self) -> "ImageData":
        """The data with which settings may be chosen, without a look at test images or outliers.

        Validation images take the place of test images. Outliers are replaced by those of the
        validation part or, if there are none, by letters drawn from Matplotlib's fonts.
        """
        number, outliers = len(self.validation_images), self.validation_outliers
        last = -number if self.validation_in_train else None
        return replace(
            self,
            name=f"{self.name} validation",
            outlier_name="letters" if outliers is None else f"{self.outlier_name} of training",
            train_images=self.train_images[:last],
            train_labels=self.train_labels[:last],
            test_images=self.validation_images,
            test_labels=self.validation_labels,
            outlier_images=(
                draw_letters(number, size=self.test_images.shape[-1], seed=1)
                if outliers is None
                else outliers
            ),
        )
