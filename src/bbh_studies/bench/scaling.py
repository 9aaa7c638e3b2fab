"""How the cost of Bayes by Hypernet grows with draws, network, noise and generator."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from bbh import generators, methods
from bbh.likelihoods import Categorical
from bbh.noise import GaussianNoise
from bbh_studies.bench.contenders import Contender
from bbh_studies.bench.networks import mlp
from bbh_studies.bench.own import OwnMethod, own_contender
from bbh_studies.bench.problems import Problem, Sizes, small_mlp

_HIDDEN = (16, 32, 64)
AXES: dict[str, tuple[int, ...]] = {
    "samples": (2, 5, 10, 20),
    "network": (50, 100, 200, 400),
    "noise": (1, 4, 16, 64),
    "generator": (1, 2, 4, 8),
}
TINY_AXES: dict[str, tuple[int, ...]] = {axis: values[:2] for axis, values in AXES.items()}


class Point(NamedTuple):
    """One place on one axis; everything else is at its default."""

    axis: str
    value: int
    contender: Contender


def points(
    sizes: Sizes, device: torch.device, axes: dict[str, tuple[int, ...]] = AXES
) -> list[Point]:
    """Contenders along every axis.

    ``samples`` is the number of weight draws per step, ``network`` the width of the MLP's hidden
    layers, ``noise`` the dimension of the noise, and ``generator`` a factor on the widths of the
    generator's hidden layers.
    """
    return [
        Point(axis, value, _contender(axis, value, small_mlp(sizes, device)))
        for axis, values in axes.items()
        for value in values
    ]


def _contender(axis: str, value: int, problem: Problem) -> Contender:
    network: Callable[[], Any] = mlp
    settings: dict[str, Any] = {"generator": generators.LayerWise(_HIDDEN)}
    if axis == "samples":
        settings["num_samples"] = value
    elif axis == "noise":
        settings["noise"] = GaussianNoise(value)
    elif axis == "generator":
        wider = tuple(value * width for width in _HIDDEN)
        settings["generator"] = generators.LayerWise(wider)
    else:
        network = lambda: mlp(value)  # noqa: E731

    def make(_: Any) -> Any:
        return methods.bayes_by_hypernet(network(), Categorical(), **settings)

    return own_contender(f"{axis}-{value}", OwnMethod("bbh", make), problem)
