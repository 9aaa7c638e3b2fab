"""Random crops, flips, brightness and contrast: whole batches at once, on the images' device.

No value is read back from the device, so it can work while the host prepares what comes next.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Augmentation:
    """Every image gets its own crop, flip, brightness and contrast, in this order.

    Attributes:
        size: Side of the crops.
        padding: Black pixels that are added on every side of an image before it is cropped.
        brightness: Largest shift of all pixels, up or down; 0 for none.
        contrast: Range of the factor that multiplies the distance of pixels from their channel's
            mean; (1, 1) for none.
    """

    size: int
    padding: int
    brightness: float = 0.0
    contrast: tuple[float, float] = (1.0, 1.0)

    def __call__(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C size size"]:
        """Returns the changed images."""
        changed = self._cropped_and_flipped(images)
        if self.brightness:
            changed = changed + _uniform(changed, -self.brightness, self.brightness)
        if self.contrast != (1.0, 1.0):
            means = changed.mean((2, 3), keepdim=True)
            changed = torch.lerp(means, changed, _uniform(changed, *self.contrast))
        return changed

    def _cropped_and_flipped(self, images: Tensor) -> Tensor:
        padded = F.pad(images, [self.padding] * 4)
        number, channels, height, width = padded.shape
        device = images.device
        top = torch.randint(height - self.size + 1, (number, 1), device=device)
        left = torch.randint(width - self.size + 1, (number, 1), device=device)
        flip = torch.randint(2, (number, 1), device=device).bool()
        steps = torch.arange(self.size, device=device)
        rows = top + steps
        columns = left + torch.where(flip, steps.flip(0), steps)
        # One look-up serves all images: the index tensors broadcast to [B, C, size, size].
        return padded[
            torch.arange(number, device=device).view(-1, 1, 1, 1),
            torch.arange(channels, device=device).view(1, -1, 1, 1),
            rows.view(number, 1, -1, 1),
            columns.view(number, 1, 1, -1),
        ]


def _uniform(images: Tensor, low: float, high: float) -> Tensor:
    """One random number for every image, in a shape that broadcasts over its pixels."""
    return images.new_empty(len(images), 1, 1, 1).uniform_(low, high)
