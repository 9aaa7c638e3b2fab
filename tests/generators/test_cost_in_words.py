"""What a generator says about itself before it is built."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bbh.generators import Directions, Generator, GeneratorModule, LayerWise, LowRank, Single
from bbh.noise import GaussianNoise
from bbh.samples import Params, Shapes

SHAPES: Shapes = {"weight": torch.Size([400, 500]), "bias": torch.Size([400])}


@pytest.mark.parametrize(
    "generator", [LayerWise((16, 24)), LayerWise((5,)), Single((8, 12)), LowRank(7)]
)
def test_the_cost_of_a_draw_is_what_torch_counts(generator: Generator):
    built = generator.make(
        {name: torch.randn(shape) for name, shape in SHAPES.items()}, GaussianNoise(2)
    )
    noise = torch.randn(1, built.num_groups, 2)
    # Gradients would have the output layers multiplied by other functions than torch's.
    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        built(noise)
    number = generator.multiplications_per_weight
    assert number is not None
    # Torch counts a product and its sum as two; hidden layers are small beside the output layer.
    weights = sum(shape.numel() for shape in SHAPES.values())
    assert counted.get_total_flops() / 2 / weights == pytest.approx(number, rel=0.05)


def test_one_line_says_what_a_draw_costs():
    line = LayerWise((16, 16)).describe(SHAPES, noise_dim=4)
    assert line.endswith("to train with Adam; a draw costs what 16 examples cost in dense layers")
    line = Directions().describe(SHAPES, noise_dim=4)
    assert line.endswith("to train with Adam; a draw costs what one example costs in dense layers")


def test_a_generator_of_ones_own_need_not_say_it():
    class Constant(Generator):
        def num_parameters(self, shapes: Shapes, noise_dim: int) -> int:
            return 1

        def make(self, values: Params, noise: GaussianNoise) -> GeneratorModule:
            raise NotImplementedError

    assert Constant().describe(SHAPES, noise_dim=4).endswith("to train with Adam")
