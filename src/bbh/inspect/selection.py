"""Which weights of a network are looked at."""

import difflib
from collections.abc import Iterator
from typing import Any, cast

from torch import nn

from bbh.distribution import WeightDistribution
from bbh.methods import DropoutMasks, Implicit, Particles, Product
from bbh.posterior import Posterior
from bbh.samples import Shapes


class PointEstimateError(ValueError):
    """There is no distribution to look at."""


def parts(weights: WeightDistribution) -> Iterator[WeightDistribution]:
    """The distributions that a product is made of, or the one there is."""
    if isinstance(weights, Product):
        for part in weights.parts:
            yield from parts(cast(WeightDistribution, part))
    else:
        yield weights


def random_shapes(weights: WeightDistribution) -> Shapes:
    """The tensors that have a distribution, without those that are points by design."""
    shapes: Shapes = {}
    for part in parts(weights):
        if isinstance(part, DropoutMasks):
            shapes |= {name: part.shapes[name] for name in part.input_axes}
        # Networks with dropout of their own never repeat themselves; their weights do.
        elif not (isinstance(part, Particles) and part.samples_per_step == 1):
            shapes |= part.shapes
    if not shapes:
        raise PointEstimateError(
            "every weight of this posterior is a point estimate (MAP, or MC dropout by the "
            "network's own layers): there is no distribution over weights to look at."
        )
    return shapes


def noise_dimensions(weights: WeightDistribution) -> dict[tuple[str, ...], int]:
    """Generated tensors that share their noise, and how many dimensions it has."""
    found: dict[tuple[str, ...], int] = {}
    for part in parts(weights):
        if not isinstance(part, Implicit):
            continue
        if part.noise.shared:
            found[tuple(part.shapes)] = part.noise.dim
            continue
        groups: dict[int, tuple[str, ...]] = {}
        for hypernetwork in part.generator.hypernetworks:
            head = cast(Any, hypernetwork).head
            groups[head.group] = (*groups.get(head.group, ()), *head.names)
        found |= dict.fromkeys(groups.values(), part.noise.dim)
    return found


def first_kernel(posterior: Posterior[Any], shapes: Shapes) -> str:
    """The first convolution's kernel, or without one the first matrix, or the first tensor."""
    convolutions = [
        f"{name}.weight".lstrip(".")
        for name, module in posterior.network.named_modules()
        if isinstance(module, nn.modules.conv._ConvNd)  # pyright: ignore[reportPrivateUsage]
    ]
    matrices = [name for name, shape in shapes.items() if len(shape) > 1]
    return next(name for name in (*convolutions, *matrices, *shapes) if name in shapes)


def check_tensor(name: str, shapes: Shapes) -> str:
    """The name, if it is one of a tensor with a distribution."""
    if name in shapes:
        return name
    close = difflib.get_close_matches(name, shapes, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(
        f"tensor={name!r}: no tensor of that name has a distribution here.{hint} "
        f"There are: {', '.join(shapes)}."
    )
