"""Letters A to J drawn from Matplotlib's own fonts: outliers that need no download."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

# Fonts that ship inside Matplotlib, so that the pictures are the same everywhere.
_FONTS = ("DejaVu Sans", "DejaVu Serif", "DejaVu Sans Mono", "STIXGeneral")
LETTERS = "ABCDEFGHIJ"
# Glyphs are rasterised this many times finer than the final pixels and averaged.
_FINE = 8


def draw_letters(number: int, size: int, seed: int = 0) -> Tensor:
    """``number`` random letters as images [number, 1, size, size] in [0, 1].

    Each is shifted by up to a tenth of the picture and rotated by up to 20 degrees.
    """
    generator = torch.Generator().manual_seed(seed)
    glyphs = torch.stack([draw_glyph(letter, font, size) for letter in LETTERS for font in _FONTS])
    chosen = glyphs[torch.randint(len(glyphs), (number,), generator=generator)]
    angle = (torch.rand(number, generator=generator) - 0.5) * 2 * math.radians(20)
    shift = (torch.rand(number, 2, generator=generator) - 0.5) * 2 * 0.2
    cosine, sine = angle.cos(), angle.sin()
    rotation = torch.stack([cosine, -sine, shift[:, 0], sine, cosine, shift[:, 1]], 1)
    grid = F.affine_grid(rotation.view(-1, 2, 3), [*chosen.shape], align_corners=False)
    moved = F.grid_sample(chosen, grid, align_corners=False)
    return F.avg_pool2d(moved, _FINE).clamp(0, 1)


def draw_glyph(letter: str, font: str, size: int) -> Tensor:
    """One letter, centred, three quarters of the picture high, [1, fine, fine]."""
    try:
        from matplotlib.font_manager import FontProperties
        from matplotlib.path import Path
        from matplotlib.textpath import TextPath
    except ImportError as error:
        raise ImportError(
            "letters are drawn with Matplotlib: pip install 'bayes-by-hypernet[studies]'."
        ) from error

    path = TextPath((0, 0), letter, size=1, prop=FontProperties(family=font, weight="bold"))
    box = path.get_extents()
    fine = size * _FINE
    extent = 1.35 * max(box.width, box.height)
    steps = (torch.arange(fine) + 0.5) / fine - 0.5
    y, x = torch.meshgrid(-steps, steps, indexing="ij")
    points = torch.stack([x, y], -1).view(-1, 2) * extent + torch.tensor(
        [(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2]
    )
    # Outlines within outlines are holes: inside means within an odd number of them.
    within = [Path(outline).contains_points(points.numpy()) for outline in path.to_polygons()]
    return torch.tensor(np.sum(within, axis=0) % 2, dtype=torch.float32).view(1, fine, fine)
