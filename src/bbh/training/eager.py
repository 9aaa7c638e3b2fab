"""Ordinary ("eager") training steps, whose kernels are launched one by one from Python."""

from typing import Any

from bbh.execution import Execution
from bbh.training.step import TrainingStep


class EagerSteps:
    """Takes training steps and keeps the sums of their terms, for averages over an epoch.

    Args:
        step: The training step to take.
    """

    def __init__(self, step: TrainingStep):
        self.step = step
        self._sums: dict[str, float] = {}
        self._number = 0

    def take(
        self, batch: Any, beta: float, execution: Execution | None = None
    ) -> dict[str, float] | None:
        """Takes one step and returns its terms."""
        terms = self.step(batch, beta, execution=execution)
        self.add(terms, 1)
        return terms

    def add(self, sums: dict[str, float], number: int) -> None:
        """Adds the summed terms of ``number`` steps that were taken elsewhere."""
        for name, value in sums.items() if number else ():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._number += number

    def means(self) -> dict[str, float]:
        """Means of the terms over the steps since the last call; empty if there were no steps."""
        means = {name: value / self._number for name, value in self._sums.items()}
        self._sums, self._number = {}, 0
        return means

    def close(self) -> None:
        """Ends training and undoes what the optimizer changed about the posterior."""
        self.step.close()
