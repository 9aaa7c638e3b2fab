"""Networks that benchmarks need and no study has."""

from torch import Tensor, nn


def mlp(width: int = 100) -> nn.Module:
    """Two hidden layers on 784 inputs."""
    return nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def plain_convolutions(classes: int = 10) -> nn.Module:
    """Seven convolutions without normalisation, for images of any size: 4,692,292 weights."""

    def convolution(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]

    return nn.Sequential(
        *convolution(3, 64),
        *convolution(64, 128),
        nn.MaxPool2d(2),
        *convolution(128, 256),
        *convolution(256, 256),
        nn.MaxPool2d(2),
        *convolution(256, 512),
        *convolution(512, 512),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 366),
        nn.ReLU(),
        nn.Linear(366, classes),
    )


def tiny_convolutions(classes: int = 10) -> nn.Module:
    """One convolution, for tests of benchmarks."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes)
    )


class Bottleneck(nn.Module):
    """Three convolutions, the middle one with windows of 3×3, beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        outputs = 4 * width
        self.path = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, inputs: Tensor) -> Tensor:
        """The sum of both, rectified."""
        return nn.functional.relu(self.path(inputs) + self.shortcut(inputs))


def resnet50(classes: int = 10) -> nn.Module:
    """He et al. (2016), with 50 layers: 23,528,522 weights for ten classes."""
    blocks: list[nn.Module] = []
    inputs = 64
    for stage, number in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for index in range(number):
            stride = 2 if stage and not index else 1
            blocks.append(Bottleneck(inputs, width, stride))
            inputs = 4 * width
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(inputs, classes),
    )
