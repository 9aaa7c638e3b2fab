"""Converts objects that hold settings (priors, generators, …) to JSON and back.

Only classes of a fixed list are created, so reading a file never executes code from it.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, cast

from torch import Tensor

from bbh import divergences, generators, likelihoods, priors
from bbh.methods import FlowKind, registered
from bbh.noise import GaussianNoise
from bbh.per_example import Sampling
from bbh.posterior import AdversarialTraining, Recipe

# Likelihoods whose names are those of priors have longer names in files.
_LIKELIHOODS: dict[str, type] = {
    "LaplaceLikelihood": likelihoods.Laplace,
    "StudentTLikelihood": likelihoods.StudentT,
}
_VALUES: dict[str, type] = _LIKELIHOODS | {
    cls.__name__: cls
    for cls in (
        priors.Normal,
        priors.Laplace,
        priors.StudentT,
        priors.ScaleMixture,
        priors.PerLayer,
        priors.FanIn,
        priors.Centred,
        priors.DiagonalNormal,
        likelihoods.Categorical,
        likelihoods.Bernoulli,
        likelihoods.Gaussian,
        likelihoods.HeteroscedasticGaussian,
        likelihoods.NegativeBinomial,
        likelihoods.Ordinal,
        likelihoods.Poisson,
        likelihoods.Quantile,
        likelihoods.Standardisation,
        divergences.ClosedForm,
        divergences.NearestNeighbour,
        divergences.JointNearestNeighbour,
        divergences.NearestNeighbourEntropy,
        divergences.JointEntropy,
        divergences.Adversarial,
        generators.LayerWise,
        generators.Sliced,
        generators.Single,
        generators.LowRank,
        generators.Directions,
        generators.Glorot,
        generators.FromNetwork,
        GaussianNoise,
        AdversarialTraining,
    )
}
_NAMES = {cls: name for name, cls in _VALUES.items()}
_ENUMS: dict[str, type[StrEnum]] = {cls.__name__: cls for cls in (FlowKind, Sampling)}
# The names of tensors that belong to a description begin with this.
TENSOR_PREFIX = "description/"

# Fields that files of 0.1 lack, where the present default is not what that version did.
_FORMERLY: dict[type, dict[str, Any]] = {
    likelihoods.HeteroscedasticGaussian: {"standardise": False},
}


class Custom:
    """Takes the place of an object of the user's own class, which only the user can supply."""

    def __init__(self, name: str):
        self.name = name


def encode(value: Any, tensors: dict[str, Tensor] | None = None) -> Any:
    """Converts a value to JSON; of an object of an unknown class, only the class name is kept.

    >>> encode(priors.Normal(2.0))
    {'type': 'Normal', 'scale': 2.0, 'loc': 0.0}

    Args:
        value: The value.
        tensors: Where to put tensors of the value, which JSON does not hold: under new names.
    """
    if isinstance(value, StrEnum):
        return {"enum": type(value).__name__, "value": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return {"tuple": [encode(one, tensors) for one in cast(tuple[Any, ...], value)]}
    if isinstance(value, list):
        return [encode(one, tensors) for one in cast(list[Any], value)]
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value).items()
        return {"mapping": {name: encode(one, tensors) for name, one in items}}
    if type(value) in _NAMES:
        fields = [field for field in dataclasses.fields(value) if field.init]
        encoded = {field.name: encode(getattr(value, field.name), tensors) for field in fields}
        return {"type": _NAMES[type(value)], **encoded}
    if isinstance(value, Recipe):
        return {"recipe": value.method, "arguments": encode(value.arguments, tensors)}
    if isinstance(value, Tensor) and tensors is not None:
        name = f"{TENSOR_PREFIX}{len(tensors)}"
        tensors[name] = value
        return {"tensor": name}
    return {"custom": f"{type(value).__module__}.{type(value).__qualname__}"}


def decode(encoded: Any, tensors: Mapping[str, Tensor] | None = None) -> Any:
    """Converts the result of ``encode`` back to the value.

    If the value or a part of it is of the user's own class, the result is a ``Custom``. A recipe
    becomes the method with its arguments, ready to be called.

    Args:
        encoded: The result of ``encode``.
        tensors: The tensors that ``encode`` put aside.

    Raises:
        ValueError: A name or field that this version does not know.
    """
    if isinstance(encoded, list):
        parts = [decode(one, tensors) for one in cast(list[Any], encoded)]
        return _custom_among(parts) or parts
    if not isinstance(encoded, dict):
        return encoded
    known = cast(dict[str, Any], encoded)
    if "tuple" in known:
        parts = decode(known["tuple"], tensors)
        return parts if isinstance(parts, Custom) else tuple(parts)
    if "mapping" in known:
        items = {name: decode(one, tensors) for name, one in known["mapping"].items()}
        return _custom_among(items.values()) or items
    if "enum" in known and known["enum"] in _ENUMS:
        return _ENUMS[known["enum"]](known["value"])
    if "tensor" in known:
        if known["tensor"] not in (tensors or {}):
            raise ValueError(f"the tensor {known['tensor']!r} is missing")
        return cast(Mapping[str, Tensor], tensors)[known["tensor"]]
    if "custom" in known:
        return Custom(str(known["custom"]))
    if "recipe" in known:
        return _as_method(known["recipe"], decode(known["arguments"], tensors))
    cls = _VALUES.get(str(known.get("type")))
    if cls is None:
        raise ValueError(f"unknown kind of object: {sorted(known.items())[:3]}")
    arguments = {name: decode(one, tensors) for name, one in known.items() if name != "type"}
    if custom := _custom_among(arguments.values()):
        return custom
    try:
        return cls(**_FORMERLY.get(cls, {}) | arguments)
    except TypeError as error:
        raise ValueError(f"{cls.__name__} does not take these fields: {error}") from error


def _as_method(name: str, arguments: dict[str, Any] | Custom) -> Any:
    if isinstance(arguments, Custom):
        return arguments
    if name not in registered():
        raise ValueError(
            f"the method {name!r} is unknown; if it is your own, import the module that registers "
            "it first"
        )
    return functools.partial(registered()[name], **arguments)


def _custom_among(values: Iterable[Any]) -> Custom | None:
    return next((value for value in values if isinstance(value, Custom)), None)
