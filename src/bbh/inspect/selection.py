"""Selects the weights of a network to inspect."""

import difflib
from typing import Any

from bbh.distribution import WeightDistribution
from bbh.network.layers import CONVOLUTIONS
from bbh.posterior import Posterior
from bbh.samples import Shapes


class PointEstimateError(ValueError):
    """All weights are point estimates, so there is no distribution to inspect."""


def check_random(weights: WeightDistribution) -> Shapes:
    """The tensors that have a distribution; raises if all are point estimates."""
    shapes = weights.random_shapes()
    if not shapes:
        raise PointEstimateError(
            "every weight of this posterior is a point estimate (MAP, MC dropout by the network's "
            "own layers, or SWAG before it has collected two epochs): there is no distribution "
            "over weights to look at."
        )
    return shapes


def first_kernel(posterior: Posterior[Any], shapes: Shapes) -> str:
    """Name of the first convolution's kernel, else of the first matrix, else the first tensor."""
    convolutions = [
        f"{name}.weight".lstrip(".")
        for name, module in posterior.network.named_modules()
        if isinstance(module, CONVOLUTIONS)
    ]
    matrices = [name for name, shape in shapes.items() if len(shape) > 1]
    return next(name for name in (*convolutions, *matrices, *shapes) if name in shapes)


def check_tensor(name: str, shapes: Shapes) -> str:
    """Returns the name; raises if no tensor of this name has a distribution."""
    if name in shapes:
        return name
    close = difflib.get_close_matches(name, shapes, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(
        f"tensor={name!r}: no tensor of that name has a distribution here.{hint} "
        f"There are: {', '.join(shapes)}."
    )
