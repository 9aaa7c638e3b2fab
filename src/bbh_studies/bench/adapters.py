"""A large frozen transformer with small trained adapters, which benchmarks need."""

from torch import Tensor, nn
from torch.nn import functional as F

_RANK = 8


class AdaptedLinear(nn.Module):
    """A frozen layer, and beside it a trained change of low rank that begins as nothing."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.whole = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down = nn.Linear(inputs, _RANK, bias=False)
        self.up = nn.Linear(_RANK, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """The sum of both."""
        return self.whole(inputs) + self.up(self.down(inputs))


class Block(nn.Module):
    """Attention, whose two layers have adapters, and two dense layers that are frozen."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.first_norm = nn.LayerNorm(width).requires_grad_(False)
        self.attend = AdaptedLinear(width, 3 * width)
        self.join = AdaptedLinear(width, width)
        self.second_norm = nn.LayerNorm(width).requires_grad_(False)
        self.dense = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        ).requires_grad_(False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Tokens [B, T, width]."""
        joint = self.attend(self.first_norm(hidden)).unflatten(-1, (3, self.heads, -1))
        query, key, value = joint.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value)
        hidden = hidden + self.join(attended.transpose(1, 2).flatten(2))
        return hidden + self.dense(self.second_norm(hidden))


def adapted_transformer(
    classes: int = 10, width: int = 768, blocks: int = 14, heads: int = 12
) -> nn.Module:
    """Reads images of 32×32 pixels as 64 patches.

    The adapters are half a million numbers, which are trained; 99 million others are frozen.
    """
    patches = nn.Conv2d(3, width, 4, 4).requires_grad_(False)
    head = nn.Linear(width, classes).requires_grad_(False)
    body = [Block(width, heads) for _ in range(blocks)]
    return nn.Sequential(patches, Tokens(), *body, Mean(), head)


class Tokens(nn.Module):
    """Places of an image as tokens."""

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] → [B, H·W, C]."""
        return images.flatten(2).transpose(1, 2)


class Mean(nn.Module):
    """The mean over tokens."""

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, T, C] → [B, C]."""
        return hidden.mean(1)
