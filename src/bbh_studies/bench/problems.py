"""What contenders are timed on: a network, a batch to train on, inputs to predict."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bbh_studies.bench.networks import mlp
from bbh_studies.problems.cifar5.resnet import ResNet
from bbh_studies.problems.mnist import LeNet

_CLASSES = 10
# Size of MNIST's training set without validation images.
_NUM_DATA = 55_000


@dataclass(frozen=True)
class Sizes:
    """How much is computed per call.

    Args:
        batch: Examples per training step.
        images: Inputs to predict.
        draws: Weight draws of a prediction.
    """

    batch: int = 100
    images: int = 250
    draws: int = 100


@dataclass(frozen=True)
class Problem:
    """A network and inputs, the same for all contenders.

    Attributes:
        name: Its name in titles and folders.
        make_network: Makes a freshly initialised network.
        shape: Shape of one input.
        sizes: How much is computed per call.
        device: Where it is computed.
        num_data: N of the objective.
        inputs: A training batch.
        targets: Its classes.
        test_inputs: Inputs to predict.
    """

    name: str
    make_network: Callable[[], nn.Module]
    shape: tuple[int, ...]
    sizes: Sizes = field(default_factory=Sizes)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    num_data: int = _NUM_DATA
    inputs: Tensor = field(init=False, repr=False)
    targets: Tensor = field(init=False, repr=False)
    test_inputs: Tensor = field(init=False, repr=False)

    def __post_init__(self):
        # Random numbers will do: times do not depend on what the numbers mean.
        generator = torch.Generator().manual_seed(0)

        def numbers(count: int) -> Tensor:
            return torch.rand(count, *self.shape, generator=generator).to(self.device)

        targets = torch.randint(_CLASSES, (self.sizes.batch,), generator=generator)
        object.__setattr__(self, "inputs", numbers(self.sizes.batch))
        object.__setattr__(self, "targets", targets.to(self.device))
        object.__setattr__(self, "test_inputs", numbers(self.sizes.images))

    @property
    def title(self) -> str:
        """One line for people."""
        sizes = self.sizes
        return (
            f"{self.name}: batches of {sizes.batch}, {sizes.draws} draws for {sizes.images} inputs"
        )


def lenet(sizes: Sizes, device: torch.device) -> Problem:
    """The paper's LeNet on images of MNIST's size: 431,080 weights."""
    return Problem("lenet", LeNet, (1, 28, 28), sizes, device)


def small_mlp(sizes: Sizes, device: torch.device, width: int = 100) -> Problem:
    """An MLP 784-100-100-10 on the same images, flattened: 89,610 weights."""
    return Problem("mlp", lambda: mlp(width), (784,), sizes, device)


def resnet(sizes: Sizes, device: torch.device, blocks: int = 5) -> Problem:
    """He's ResNet-32 on images of CIFAR's size, or one with another number of blocks."""
    name = f"resnet{6 * blocks + 2}"
    return Problem(name, lambda: ResNet(blocks=blocks), (3, 32, 32), sizes, device)
