"""Training steps one kernel at a time, counted and averaged."""

from typing import Any

from bbh.execution import Execution
from bbh.training.step import TrainingStep


class EagerSteps:
    """Takes steps, and keeps the sums of their terms.

    Args:
        step: What is taken.
    """

    def __init__(self, step: TrainingStep):
        self.step = step
        self._sums: dict[str, float] = {}
        self._number = 0

    def take(
        self, batch: Any, beta: float, execution: Execution | None = None
    ) -> dict[str, float] | None:
        """One step; its terms."""
        terms = self.step(batch, beta, execution=execution)
        self.add(terms, 1)
        return terms

    def add(self, sums: dict[str, float], number: int) -> None:
        """Counts the terms of steps that were taken elsewhere."""
        for name, value in sums.items() if number else ():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._number += number

    def means(self) -> dict[str, float]:
        """Means of the terms over the steps since this was last asked; empty if there were none."""
        means = {name: value / self._number for name, value in self._sums.items()}
        self._sums, self._number = {}, 0
        return means

    def close(self) -> None:
        """Leaves posterior and optimizer as any other code expects them."""
        self.step.close()
