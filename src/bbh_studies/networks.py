"""The networks of the studies: one per study, the same for all methods."""

from torch import Tensor, nn
from torch.nn import functional as F


class LeNet(nn.Module):
    """The paper's: 5×5 convolutions 20 and 50, 500 hidden units; 431,080 weights."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(800, 500)
        self.fc2 = nn.Linear(500, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, 10] for images [B, 1, 28, 28]."""
        hidden = F.max_pool2d(F.relu(self.conv1(images)), 2)
        hidden = F.max_pool2d(F.relu(self.conv2(hidden)), 2)
        return self.fc2(F.relu(self.fc1(hidden.flatten(1))))


def digits_network() -> nn.Module:
    """A small convolutional network for 8×8 digits; 13,706 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def toy_network() -> nn.Module:
    """1 → 100 ReLU → 1, the same for all methods and the reference; 301 weights."""
    return nn.Sequential(nn.Linear(1, 100), nn.ReLU(), nn.Linear(100, 1))
