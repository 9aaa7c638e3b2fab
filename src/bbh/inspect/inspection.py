"""``look``: all measurements of a posterior over weights, in one pass over its draws."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from bbh import checks
from bbh.batches import Inputs
from bbh.files import atomic_path
from bbh.inspect.collapse import Sign, signs_of_collapse
from bbh.inspect.correlation import Correlation
from bbh.inspect.dimension import EffectiveDimension
from bbh.inspect.diversity import Diversity, functional_diversity
from bbh.inspect.gathering import gather
from bbh.inspect.marginals import Bimodality, Kurtosis, Marginals
from bbh.inspect.selection import check_random, check_tensor, first_kernel
from bbh.inspect.spread import Spread
from bbh.posterior import Posterior
from bbh.prediction.predicting import MEMORY_LIMIT
from bbh.samples import Samples, size

FILE_NAME = "inspection.json"
# The largest number of weights in the heat map and in the dip test: LeNet's first kernel has 500.
_MOST_CHOSEN = 1000
# Marginals are shown in a grid of five by five, as in the paper.
_MOST_MARGINALS = 25
# The number of draws whose predictions are compared: enough for a small standard error of the mean
# over pairs.
_FUNCTION_DRAWS = 100


@dataclass(frozen=True)
class Inspection:
    """The result of ``look``; print it, or ``save`` it with its figures.

    Attributes:
        num_samples: The number S of draws.
        num_weights: The number D of weights that have a distribution.
        marginals: Draws of the chosen tensor's first 25 weights.
        bimodality: Dip test of the chosen tensor's first 1000 weights.
        correlation: Correlations of the same weights.
        kurtosis: Excess kurtosis of all weights.
        spread: Standard deviations of all weights.
        dimension: Effective dimension of all weights, from the first 256 draws or fewer.
        diversity: Differences between the predictions of draws, if inputs were given.
        signs: Signs of collapse.
    """

    num_samples: int
    num_weights: int
    marginals: Marginals
    bimodality: Bimodality
    correlation: Correlation
    kurtosis: Kurtosis
    spread: Spread
    dimension: EffectiveDimension
    diversity: Diversity | None
    signs: tuple[Sign, ...]

    def numbers(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        return {
            "draws": self.num_samples,
            "weights": self.num_weights,
            "tensor": self.marginals.tensor,
            "bimodality": self.bimodality.numbers(),
            "correlation": self.correlation.numbers(),
            "excess_kurtosis": self.kurtosis.numbers(),
            "spread": self.spread.numbers(),
            "effective_dimension": self.dimension.numbers(),
            "diversity": None if self.diversity is None else self.diversity.numbers(),
            "signs_of_collapse": [vars(sign) for sign in self.signs],
        }

    def save(self, folder: str | Path) -> Path:
        """Writes ``inspection.json`` and the three figures as PNG; returns the folder."""
        from bbh.inspect import figures  # not at the top, since only figures need Matplotlib

        folder = Path(folder)
        pictures = {
            "marginals": figures.draw_marginals(self.marginals),
            "correlation": figures.draw_correlation(self.correlation),
            "spread": figures.draw_spread(self.spread),
        }
        for name, figure in pictures.items():
            with atomic_path(folder / f"{name}.png") as temporary:
                figures.write_png(figure, temporary)
        with atomic_path(folder / FILE_NAME) as temporary:
            temporary.write_text(json.dumps(self.numbers(), indent=1, allow_nan=False) + "\n")
        return folder

    def __str__(self) -> str:
        lines = [
            f"{self.num_samples:,} draws of {self.num_weights:,} weights; "
            f"modes and correlations of {self.marginals.tensor}",
            *map(str, (self.bimodality, self.kurtosis, self.correlation)),
            *map(str, (self.spread, self.dimension)),
            *([] if self.diversity is None else [str(self.diversity)]),
            *(map(str, self.signs) if self.signs else ["no sign of collapse"]),
        ]
        return "\n".join(lines)


def look(
    posterior: Posterior[Any],
    inputs: Inputs | Iterable[Any] | None = None,
    num_samples: int = 1000,
    *,
    tensor: str | None = None,
    samples: Mapping[str, Tensor] | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Inspection:
    """Measures draws of the weights, and the differences of their predictions for ``inputs``.

    Draws are made in pieces and not all kept: only the moments of all weights, all draws of the
    first weights of one tensor, and a few whole draws. Weights that are point estimates by design
    (normalisation layers, biases under dropout) are left out.

    Args:
        posterior: Any posterior that is not a point estimate.
        inputs: Inputs in any form that ``bbh.predict`` takes; None does not compare predictions.
        num_samples: The number S of draws. A distribution with fewer different draws (an ensemble)
            uses each once.
        tensor: Name of the tensor for marginals and correlations; None takes the kernel of the
            first convolution, or else the first matrix.
        samples: Draws to use instead of new ones.
        memory_limit: Bytes that draws may take in addition to the model.

    Examples:
        >>> import torch
        >>> import bbh
        >>> network = torch.nn.Linear(20, 3)
        >>> posterior = bbh.methods.bayes_by_backprop(network, bbh.likelihoods.Categorical())
        >>> looked = look(posterior, torch.randn(10, 20), num_samples=200)
        >>> looked.num_weights, looked.signs
        (63, ())
    """
    if samples is None and num_samples < 2:
        raise ValueError(f"num_samples={num_samples}: how draws spread takes at least two.")
    checks.number("memory_limit", memory_limit, positive=True)
    shapes = check_random(posterior.weights)
    if samples is not None and (missing := shapes.keys() - samples.keys()):
        raise ValueError(f"the weight samples lack {sorted(missing)}.")
    name = first_kernel(posterior, shapes) if tensor is None else check_tensor(tensor, shapes)
    noise = posterior.weights.noise_groups()
    moments, chosen, whole = gather(
        posterior, shapes, name, _MOST_CHOSEN, num_samples, samples, memory_limit
    )
    spread = Spread.of(moments.std, shapes)
    dimension = EffectiveDimension.of(whole, shapes, moments, noise)
    functions = None
    if inputs is not None:
        functions = functional_diversity(
            posterior,
            inputs,
            min(num_samples, _FUNCTION_DRAWS),
            samples=None if samples is None else Samples.of(samples).take(slice(_FUNCTION_DRAWS)),
            memory_limit=memory_limit,
        )
    varies = moments.second > 0
    return Inspection(
        num_samples=moments.number,
        num_weights=size(shapes),
        marginals=Marginals.of(name, shapes[name], chosen[:, :_MOST_MARGINALS].cpu()),
        bimodality=Bimodality.of(chosen),
        correlation=Correlation.of(name, chosen),
        kurtosis=Kurtosis(moments.excess_kurtosis[varies].cpu(), moments.number),
        spread=spread,
        dimension=dimension,
        diversity=functions,
        signs=signs_of_collapse(spread, dimension, noise, functions),
    )
