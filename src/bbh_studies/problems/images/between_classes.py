"""Digits that are turned or mixed: inputs between classes, as in the authors' code.

The authors turn images with cubic splines; here it is bicubic interpolation, which also passes
through the pixels but has a slightly different curve between them.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

import bbh
from bbh.predictive import ClassPredictive
from bbh_studies.datasets import ImageData
from bbh_studies.problems.images.measures import as_bytes

# Digit → index of the test image in the authors' code; in other data the first image is taken.
_MNIST_INDICES = {1: 202, 3: 270, 6: 217, 8: 391}
# Name → digit, and degrees by which it is turned either way: a six becomes a nine.
_TURNED = {"three": (3, 90), "one": (1, 90), "six": (6, 180)}
_STEP = 10
_FACTORS = 11
_MIXED = (8, 3)
_MOST_DRAWS = 40


def series_arrays(
    posterior: bbh.Posterior[Any], data: ImageData, num_samples: int
) -> dict[str, np.ndarray]:
    """Images between classes and every draw's class probabilities for them, for figures.

    There are ``rotation_three``, ``rotation_one``, ``rotation_six`` and ``mixing``, each with
    ``…_images`` [A, H, W] in bytes, ``…_angles`` in degrees or ``…_factors`` [A], and
    ``…_probabilities`` [S, A, C] in half precision. One set of draws serves all four.
    """
    inputs = series_images(data)
    images = torch.cat([shown for shown, _ in inputs.values()])
    predictive: ClassPredictive = bbh.predict(
        posterior, images, min(num_samples, _MOST_DRAWS), keep_draws=True
    )
    assert predictive.draws is not None
    draws = predictive.draws.half().cpu().numpy()
    arrays: dict[str, np.ndarray] = {}
    first = 0
    for name, (shown, positions) in inputs.items():
        last = first + len(shown)
        word = "factors" if name == "mixing" else "angles"
        arrays[f"{name}_images"] = as_bytes(shown)
        arrays[f"{name}_{word}"] = positions.numpy()
        arrays[f"{name}_probabilities"] = draws[:, first:last]
        first = last
    return arrays


def series_images(data: ImageData) -> Mapping[str, tuple[Tensor, Tensor]]:
    """Name → images [A, 1, H, W] and their angles or factors [A]."""
    chosen = {digit: data.test_images[digit_index(data, digit)] for digit in _MNIST_INDICES}
    inputs: dict[str, tuple[Tensor, Tensor]] = {}
    for name, (digit, most) in _TURNED.items():
        angles = torch.arange(-most, most + 1, _STEP)
        inputs[f"rotation_{name}"] = rotate(chosen[digit], angles), angles
    start, end = (chosen[digit] for digit in _MIXED)
    factors = torch.linspace(0, 1, _FACTORS)
    inputs["mixing"] = mix(start, end, factors), factors
    return inputs


def digit_index(data: ImageData, digit: int) -> int:
    """Index of the test image that is used for a digit."""
    if data.name == "MNIST":
        return _MNIST_INDICES[digit]
    return int((data.test_labels == digit).nonzero()[0])


def rotate(image: Float[Tensor, "1 H W"], degrees: Int[Tensor, " A"]) -> Float[Tensor, "A 1 H W"]:
    """The image turned anticlockwise about its centre, at the same size, on black."""
    angles = degrees * (math.pi / 180)
    cosine, sine, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    # Maps places in the new image to places in the old one; rows count downwards.
    inverse = torch.stack([cosine, -sine, zero, sine, cosine, zero], 1).view(-1, 2, 3)
    shape = [len(degrees), *image.shape]
    grid = F.affine_grid(inverse, shape, align_corners=False)
    turned = F.grid_sample(
        image.expand(*shape), grid, mode="bicubic", padding_mode="zeros", align_corners=False
    )
    return turned.clamp(0, 1)  # cubic curves overshoot at edges


def mix(
    start: Float[Tensor, "1 H W"], end: Float[Tensor, "1 H W"], factors: Float[Tensor, " A"]
) -> Float[Tensor, "A 1 H W"]:
    """(1 − factor) · start + factor · end."""
    weights = factors.view(-1, 1, 1, 1)
    return (1 - weights) * start + weights * end
