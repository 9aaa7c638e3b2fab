"""Figures in notebooks, where pyplot was never imported."""

import struct

import torch

import bbh


def test_a_notebook_gets_an_image_and_the_size_to_show_it_at():
    probs = torch.tensor([[0.9, 0.1]] * 20)
    figure = bbh.plots.reliability(probs, torch.zeros(20, dtype=torch.long))
    image, shown = figure._repr_png_()
    assert image.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", image[16:24])
    # More pixels than it takes up on the page, for sharp screens, in the same proportion.
    assert width > shown["width"] == round(4.3 * 100)
    assert abs(width / shown["width"] - height / shown["height"]) < 0.01
