"""Temperature scaling: one number that makes classifiers as sure as they are right."""

import logging
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.decisions.predictions import Array, class_probabilities, labelled, same_device
from bbh.predictive import ClassPredictive

logger = logging.getLogger("bbh")

# Temperatures are looked for in this range. Beyond it probabilities are one-hot or uniform.
_LOWEST, _HIGHEST = 0.01, 100.0
# Halvings of the range of 1/T: 2⁻⁶⁰ of it is below the resolution of float64.
_HALVINGS = 60


@dataclass(frozen=True)
class TemperatureScaling:
    """Probabilities raised to the power 1/T and normalised: p_c^(1/T) / Σ_j p_j^(1/T).

    T > 1 makes predictions less sure, T < 1 surer; the predicted class stays the same. For one
    network this is Guo et al. (2017), "On calibration of modern neural networks"; here it acts on
    probabilities that are averaged over draws of weights, whose logarithms take the place of
    logits. Use ``fit`` to find T.

    Attributes:
        temperature: T.

    Examples:
        >>> TemperatureScaling(2.0)(torch.tensor([[0.8, 0.2]]))
        tensor([[0.6667, 0.3333]])
    """

    temperature: float

    def __post_init__(self):
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature}: give a positive, finite number.")

    @staticmethod
    def fit(predictions: ClassPredictive | Array, targets: Array) -> "TemperatureScaling":
        """The temperature with the lowest negative log likelihood of held-out classes.

        The likelihood is convex in 1/T, so there is one optimum, found by bisection of its
        derivative. If the optimum is at T = 0 (every held-out example is predicted rightly) or at
        infinity, the nearest temperature in [0.01, 100] is taken, with a warning in the log.

        Args:
            predictions: Predictions of held-out examples, or their probabilities [B, C].
            targets: Their classes.
        """
        probs, classes = labelled(predictions, targets)
        logs = _logarithms(probs)
        # Relative to the true class, so that nothing is left to rounding where it is certain.
        logs = logs - logs.gather(1, classes.unsqueeze(1))

        def slope(inverse: float) -> float:
            """Derivative of the mean negative log likelihood with respect to 1/T."""
            return float(((logs * inverse).softmax(1) * logs).sum(1).mean())

        low, high = 1 / _HIGHEST, 1 / _LOWEST
        for end, beyond in ((low, slope(low) >= 0), (high, slope(high) <= 0)):
            if beyond:
                logger.warning(
                    "temperature scaling found no optimum: T is at the end of its range, %g. %s",
                    1 / end,
                    "The predictions tell nothing about these targets: are they shuffled?"
                    if end == low
                    else "Hold out more examples, some of which are predicted wrongly.",
                )
                return TemperatureScaling(1 / end)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if slope(middle) < 0 else (low, middle)
        return TemperatureScaling(2 / (low + high))

    def __call__(self, predictions: ClassPredictive | Array) -> Float[Tensor, "B C"]:
        """The scaled probabilities."""
        probs = class_probabilities(predictions)
        scaled = (_logarithms(probs) / self.temperature).softmax(1)
        return same_device(scaled.to(torch.get_default_dtype()), predictions)


def _logarithms(probs: Tensor) -> Tensor:
    """log p, finite also where float32 has rounded p to 0."""
    return probs.clamp(min=torch.finfo(torch.float32).tiny).log()
