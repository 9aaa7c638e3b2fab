"""Augmentation: uniform, fair, repeatable, and every image by itself."""

import math

import torch

from bbh_studies.problems.images.augmentation import Augmentation
from bbh_studies.problems.images.train_and_measure import ShuffledBatches

CROPS = Augmentation(size=32, padding=4)
PAPER = Augmentation(size=24, padding=2, brightness=63 / 255, contrast=(0.2, 1.8))
NUMBER = 20_000


def places(number: int, size: int = 8) -> torch.Tensor:
    """Images whose pixels tell their row and column, counted from one: padding is zero."""
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    return (torch.stack([rows, columns]) + 1.0).expand(number, 2, size, size)


def chi_square(counts: torch.Tensor) -> float:
    expected = counts.sum() / len(counts)
    return ((counts - expected).square() / expected).sum().item()


def test_crops_are_pieces_of_the_padded_image_uniformly_placed():
    found = Augmentation(size=6, padding=1)(places(NUMBER))
    assert found.shape == (NUMBER, 2, 6, 6)
    # The pixel in the middle is never padding: row 2 of the crop shows row top + 2 − 1 + 1.
    top = found[:, 0, 2, 2] - 2
    flipped = found[:, 1, 2, 2] > found[:, 1, 2, 3]
    first = torch.where(flipped, found[:, 1, 2, 3], found[:, 1, 2, 2])
    left = first - 2
    for offsets in (top, left):
        counts = offsets.long().bincount()
        assert len(counts) == 8 + 2 - 6 + 1  # every place where the crop fits, both ends too
        assert chi_square(counts) < 18.5  # the 99.9th percentile with four degrees of freedom
    # Rows and columns are placed independently of each other, and of flips.
    both = (top * 5 + left).long().bincount(minlength=25)
    assert chi_square(both) < 51.2  # 24 degrees of freedom
    assert abs(torch.corrcoef(torch.stack([left, flipped.float()]))[0, 1]) < 4 / math.sqrt(NUMBER)
    # And each crop is the whole piece: compare with slices of the padded image.
    padded = torch.nn.functional.pad(places(1)[0], [1] * 4)
    for index in range(50):
        x, y = int(left[index]), int(top[index])
        piece = padded[:, y : y + 6, x : x + 6]
        assert torch.equal(found[index], piece.flip(-1) if flipped[index] else piece)


def test_half_of_the_images_are_flipped():
    found = Augmentation(size=8, padding=0)(places(NUMBER))
    flipped = (found[:, 1, 0, 0] > found[:, 1, 0, 1]).double().mean().item()
    assert abs(flipped - 0.5) < 4 * 0.5 / math.sqrt(NUMBER)
    assert torch.equal(found[:, 0], places(NUMBER)[:, 0])  # rows stay


def test_every_image_is_changed_by_itself():
    # Image k is k everywhere: whatever leaks from another shows as another number.
    images = torch.arange(1.0, 301).view(-1, 1, 1, 1).expand(-1, 3, 32, 32)
    found = CROPS(images)
    numbers = torch.arange(1.0, 301).view(-1, 1, 1, 1)
    assert ((found == numbers) | (found == 0)).all()
    assert (found == numbers).any((1, 2, 3)).all()
    # Channels move together.
    assert torch.equal(found[:, 0], found[:, 1])
    # Changing one image changes nothing about the others.
    other = images.clone()
    other[7] = -1
    torch.manual_seed(5)
    first = PAPER(images)
    torch.manual_seed(5)
    second = PAPER(other)
    same = [index for index in range(300) if index != 7]
    assert torch.equal(first[same], second[same])
    assert not torch.equal(first[7], second[7])


def test_the_seed_decides():
    images = torch.rand(50, 3, 32, 32)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(PAPER(images))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    # A second pass sees other crops.
    assert not torch.equal(PAPER(images), PAPER(images))


def test_brightness_and_contrast_are_those_of_the_papers_code():
    # Two channels with their own means, and no crop to disturb them.
    pattern = torch.tensor([0.0, 1.0]).repeat(8, 4) - 0.5
    images = torch.stack([0.3 + 0.2 * pattern, 0.6 + 0.4 * pattern]).expand(NUMBER, 2, 8, 8)
    found = Augmentation(8, 0, brightness=63 / 255, contrast=(0.2, 1.8))(images)
    shifts = found.mean((2, 3)) - torch.tensor([0.3, 0.6])
    torch.testing.assert_close(shifts[:, 0], shifts[:, 1])
    factors = found.std((2, 3)) / images.std((2, 3))
    torch.testing.assert_close(factors[:, 0], factors[:, 1], rtol=1e-3, atol=1e-3)
    for values, low, high in ((shifts[:, 0], -63 / 255, 63 / 255), (factors[:, 0], 0.2, 1.8)):
        counts = torch.histc(values, 10, low, high)
        assert counts.sum() == NUMBER
        assert chi_square(counts) < 27.9  # the 99.9th percentile with nine degrees of freedom
    assert abs(torch.corrcoef(torch.stack([shifts[:, 0], factors[:, 0]]))[0, 1]) < 4 / math.sqrt(
        NUMBER
    )


def test_the_papers_crops_are_of_images_padded_to_36():
    found = PAPER(torch.rand(10, 3, 32, 32))
    assert found.shape == (10, 3, 24, 24)
    offsets = Augmentation(24, 2)(places(5000, 32))[:, 0, 12, 12] - 11
    assert (offsets.min().item(), offsets.max().item()) == (0, 12)


def test_batches_are_augmented_and_labels_follow():
    images = torch.arange(1.0, 31).view(-1, 1, 1, 1).expand(-1, 3, 32, 32)
    labels = torch.arange(1, 31)
    batches = ShuffledBatches(images, labels, 10, CROPS)
    seen = []
    for inputs, targets in batches:
        assert inputs.shape == (10, 3, 32, 32)
        assert torch.equal(inputs.amax((1, 2, 3)), targets.float())
        seen += targets.tolist()
    assert sorted(seen) == labels.tolist()
