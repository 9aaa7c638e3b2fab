"""Reading predictions in the forms that users have them: objects of bbh, tensors, arrays."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from bbh.metrics import checks
from bbh.predictive import ClassPredictive, Predictive, RegressionPredictive

Array = Tensor | NDArray[Any]


def tensor(name: str, values: object) -> Tensor:
    """A tensor on the CPU without gradient, from a tensor, an array or a list of numbers."""
    if isinstance(values, Tensor):
        return values.detach().cpu()
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"{name} is a {type(values).__name__}: pass a tensor or an array of numbers."
        )
    return torch.from_numpy(array.copy())  # arrays may be read-only


def class_probabilities(predictions: Predictive | Array) -> Float[Tensor, "B C"]:
    """The averaged probabilities of a prediction, or given ones, checked, in float64."""
    if isinstance(predictions, Predictive) and not isinstance(predictions, ClassPredictive):
        raise TypeError(
            f"predictions is a {type(predictions).__name__}, and classes are needed: for "
            "regression there is bbh.decisions.ConformalIntervals."
        )
    given = predictions.mean if isinstance(predictions, ClassPredictive) else predictions
    probs = tensor("predictions", given)
    if probs.ndim == 1 or (probs.ndim == 2 and probs.shape[1] == 1):
        raise ValueError(
            f"predictions: shape {list(probs.shape)} are probabilities of yes (Bernoulli). Pass "
            "both classes, torch.stack([1 - yes, yes], dim=-1) of shape [B, 2]."
        )
    return checks.probabilities("predictions", probs, num_dims=2).double()


def labelled(
    predictions: ClassPredictive | Array, targets: Array
) -> tuple[Float[Tensor, "B C"], Int[Tensor, " B"]]:
    """Probabilities of held-out examples and their classes."""
    probs = class_probabilities(predictions)
    return checks.labelled(probs, tensor("targets", targets))


def scores(name: str, values: Predictive | Array) -> Float[Tensor, " B"]:
    """One number per example, in float64; larger means less certain."""
    if isinstance(values, Predictive):
        raise TypeError(
            f"{name} is a {type(values).__name__}: pass one number per example, e.g. "
            "predictive.entropy."
        )
    return checks.numbers(name, tensor(name, values), num_dims=1).double()


def flags(name: str, values: Array, like: Tensor) -> Float[Tensor, " B"]:
    """One yes or no per example as 1 or 0."""
    found = checks.numbers(name, tensor(name, values), num_dims=1)
    checks.same_shape(name, found, "uncertainty", like)
    if not ((found == 0) | (found == 1)).all():
        raise ValueError(
            f"{name}: values other than 0 and 1; pass whether each prediction is wrong, "
            "e.g. predictive.labels != targets, or (mean - targets).abs() > tolerance"
        )
    return found.double()


def real(name: str, values: Array) -> Tensor:
    """Finite real numbers, in float64."""
    return checks.numbers(name, tensor(name, values)).double()


def is_regression(predictions: object) -> bool:
    """Whether this is a regression's prediction; raises if it is one of classes."""
    if isinstance(predictions, Predictive) and not isinstance(predictions, RegressionPredictive):
        raise TypeError(
            f"predictions is a {type(predictions).__name__}, and real numbers are needed: for "
            "classes there is bbh.decisions.ConformalSets."
        )
    return isinstance(predictions, RegressionPredictive)


def same_device(result: Tensor, predictions: object) -> Tensor:
    """The result where the predictions are."""
    source = predictions.mean if isinstance(predictions, Predictive) else predictions
    return result.to(source.device) if isinstance(source, torch.Tensor) else result
