"""One pass over a data set by another library's loop: the same draws for all of its batches."""

from typing import Any

import torch
from torch import Tensor

from bbh.batches import Inputs, move
from bbh.posterior import Posterior
from bbh.prediction import MEMORY_LIMIT, predict
from bbh.prediction.draws import evaluation_mode, seeded
from bbh.predictive import Predictive
from bbh.samples import Samples, size


class EvaluationPass:
    """Predicts batch by batch, and computes metrics over the whole data set at the end.

    The draws are kept if they are small, else they are made anew from their seed for every batch.

    Args:
        posterior: The posterior.
        num_samples: The number of weight draws.
    """

    def __init__(self, posterior: Posterior[Any], num_samples: int):
        self._posterior = posterior
        self._number = posterior.weights.num_useful(num_samples)
        self._seed = int(torch.randint(2**62, ()))
        self._samples: Samples | None = None
        # Predictions and targets by the number of the data set.
        self._found: dict[int, list[tuple[Predictive, Tensor]]] = {}
        if 4 * self._number * size(posterior.weights.shapes) <= MEMORY_LIMIT // 4:
            with evaluation_mode(posterior), torch.no_grad():
                self._samples = posterior.sample(self._number).values_only()

    def predictive(self, inputs: Inputs) -> Predictive:
        """The predictive distribution of a batch."""
        inputs = move(inputs, self._posterior.device)
        if self._samples is not None:
            return predict(self._posterior, inputs, samples=self._samples)
        with seeded(self._seed, self._posterior.device):
            return predict(self._posterior, inputs, self._number)

    def add(self, predictive: Predictive, targets: Tensor, dataset: int = 0) -> None:
        """Remembers the targets of a batch whose prediction this is."""
        self._found.setdefault(dataset, []).append((predictive, targets))

    def metrics(self) -> dict[str, float]:
        """The likelihood's metrics; of several data sets, ``name/0``, ``name/1`` and so on."""
        named: dict[str, float] = {}
        for number, parts in self._found.items():
            joined = Predictive.joined([one for one, _ in parts])
            targets = torch.cat([known.to(joined.mean.device) for _, known in parts])
            suffix = f"/{number}" if len(self._found) > 1 else ""
            metrics = self._posterior.likelihood.metrics(joined, targets)
            named |= {f"{name}{suffix}": value for name, value in metrics.items()}
        return named
