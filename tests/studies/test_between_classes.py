"""Turned and mixed digits, against known answers."""

import numpy as np
import pytest
import scipy.ndimage
import torch

import bbh
from bbh_studies import datasets
from bbh_studies.problems.digits import digits_network
from bbh_studies.problems.images.between_classes import (
    digit_index,
    mix,
    rotate,
    series_arrays,
    series_images,
)


@pytest.mark.parametrize("size", [8, 28, 5])
def test_quarter_turns_are_exact(size):
    image = torch.rand(1, size, size)
    turned = rotate(image, torch.tensor([-90, 0, 90, 180, -180]))
    for quarters, one in zip((-1, 0, 1, 2, 2), turned, strict=True):
        torch.testing.assert_close(one, torch.rot90(image, quarters, (1, 2)), rtol=0, atol=1e-5)


def test_other_angles_are_close_to_splines():
    y, x = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    blob = torch.exp(-((x - 17) ** 2 / 18 + (y - 12) ** 2 / 40))
    for degrees in (30, -70):
        spline = scipy.ndimage.rotate(blob.numpy(), degrees, reshape=False, order=3)
        turned = rotate(blob.unsqueeze(0), torch.tensor([degrees]))[0, 0].numpy()
        # Of images with grey levels up to one; away from the border, where the two pad apart.
        inner = (slice(6, -6),) * 2
        assert np.abs(turned - spline)[inner].max() < 0.02


def test_mixing_ends_at_the_originals():
    start, end = torch.rand(2, 1, 8, 8)
    mixed = mix(start, end, torch.tensor([0.0, 0.3, 1.0]))
    assert torch.equal(mixed[0], start)
    assert torch.equal(mixed[2], end)
    torch.testing.assert_close(mixed[1], 0.7 * start + 0.3 * end)


def test_arrays_of_the_digits():
    data = datasets.load_digits()
    posterior = bbh.methods.bayes_by_backprop(digits_network(), bbh.likelihoods.Categorical())
    arrays = series_arrays(posterior, data, num_samples=7)
    steps = {"rotation_three": 19, "rotation_one": 19, "rotation_six": 37, "mixing": 11}
    for name, number in steps.items():
        word = "factors" if name == "mixing" else "angles"
        assert arrays[f"{name}_{word}"].shape == (number,)
        images, probabilities = arrays[f"{name}_images"], arrays[f"{name}_probabilities"]
        assert (images.shape, images.dtype) == ((number, 8, 8), np.uint8)
        assert (probabilities.shape, probabilities.dtype) == ((7, number, 10), np.float16)
        np.testing.assert_allclose(probabilities.sum(-1, dtype=np.float32), 1, atol=5e-3)
    assert arrays["rotation_six_angles"].tolist() == list(range(-180, 181, 10))
    assert arrays["mixing_factors"] == pytest.approx(np.linspace(0, 1, 11))
    # Unturned in the middle, and mixing starts with an eight and ends with that three.
    three = arrays["rotation_three_images"][9]
    assert (arrays["mixing_images"][-1] == three).all()
    index = int((data.test_labels == 3).nonzero()[0])
    assert (three == (data.test_images[index, 0] * 255).round().numpy()).all()


def test_a_point_estimate_has_one_draw():
    data = datasets.load_digits()
    posterior = bbh.methods.maximum_a_posteriori(digits_network(), bbh.likelihoods.Categorical())
    assert series_arrays(posterior, data, 100)["mixing_probabilities"].shape == (1, 11, 10)


def test_the_authors_images_are_the_digits_they_say(data_dir):
    data = datasets.load_mnist(data_dir)
    for digit in (1, 3, 6, 8):
        assert data.test_labels[digit_index(data, digit)] == digit
    images, angles = series_images(data)["rotation_six"]
    assert images.shape == (37, 1, 28, 28)
    unturned = images[angles.tolist().index(0)]
    torch.testing.assert_close(unturned, data.test_images[217], rtol=0, atol=1e-5)
