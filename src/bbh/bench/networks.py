"""Networks that no study has and benchmarks need."""

from torch import Tensor, nn
from torch.nn import functional as F


def mlp(width: int = 100) -> nn.Module:
    """Two hidden layers on 784 inputs."""
    return nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


class ResNet(nn.Module):
    """The CIFAR network of He et al. (2016), with group norm instead of batch norm.

    Group norm has no running statistics, so weight draws need none of their own.

    Args:
        blocks: Per stage; depth is 6 · blocks + 2.
        width: Channels of the first stage.
        classes: Outputs.
    """

    def __init__(self, blocks: int = 5, width: int = 16, classes: int = 10):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = _norm(width)
        stages = [width, 2 * width, 4 * width]
        channels = width
        found: list[nn.Module] = []
        for stage, outputs in enumerate(stages):
            for number in range(blocks):
                stride = 2 if stage and not number else 1
                found.append(_Block(channels, outputs, stride))
                channels = outputs
        self.blocks = nn.Sequential(*found)
        self.classify = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits for images [B, 3, H, W]."""
        hidden = self.blocks(F.relu(self.norm(self.conv(images))))
        return self.classify(hidden.mean((2, 3)))


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = _norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = _norm(outputs)
        self.stride = stride
        self.added = outputs - inputs

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(inputs)))
        hidden = self.norm2(self.conv2(hidden))
        # The paper's option A: every second pixel, new channels zero.
        shortcut = inputs[:, :, :: self.stride, :: self.stride]
        return F.relu(hidden + F.pad(shortcut, (0, 0, 0, 0, 0, self.added)))


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(min(8, channels), channels)
