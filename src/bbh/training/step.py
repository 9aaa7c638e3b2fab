"""One training step: the objective, its gradient and the update, every number checked."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from math import isfinite
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from bbh.batches import Batch, Inputs, as_batch, move
from bbh.generators.factored.adam import FactoredAdam
from bbh.generators.factored.gradients import clip_, total_norm
from bbh.objective import FreeEnergy, free_energy
from bbh.posterior import Posterior
from bbh.training.history import History

Complete = Callable[[Inputs], Batch]
# Parts of the objective by name; the last is what to minimise.
Terms = dict[str, Tensor]


class DivergedError(FloatingPointError):
    """Training produced a value that is not finite.

    The posterior holds the state before the step that failed.

    Attributes:
        term: Which one: nll, complexity, auxiliary, total or gradient_norm.
        history: The records up to then.
    """

    def __init__(self, term: str, step: int, value: float):
        super().__init__(
            f"training stopped at step {step}: the {term} is {value}. The posterior keeps its "
            "state from before that step. Common remedies: a lower learning rate, "
            "gradient_clip=1.0, annealing the complexity with beta=bbh.Linear(5, 20), and a look "
            "at the inputs for NaN or very large values."
        )
        self.term = term
        self.history = History()


class Objective(nn.Module):
    """The free energy as a module's forward pass, which is what distribution wraps."""

    def __init__(self, posterior: Posterior[Any]):
        super().__init__()
        self.posterior = posterior

    def forward(
        self, inputs: Inputs, complete: Complete | None, num_samples: int | None, **settings: Any
    ) -> Any:
        """The free energy of a batch, or without one the helper networks' loss alone."""
        if complete is not None:
            batch = complete(inputs)
            return free_energy(self.posterior, batch, num_samples=num_samples, **settings)
        # Helper networks alone: no gradient is wanted for the weights they look at.
        weights = self.posterior.weights
        with torch.no_grad():
            samples = weights.sample(num_samples or weights.samples_per_step)
        return weights.cost(samples, self.posterior.prior).auxiliary


class Stepper:
    """Takes training steps.

    Args:
        posterior: What is trained.
        objective: Its ``Objective``, as Fabric wrapped it.
        optimizer: As Fabric wrapped it.
        fabric: Device and precision.
        settings: Arguments of the free energy that stay the same.
        gradient_clip: Largest global norm of the gradient.

    Attributes:
        count: Steps taken.
    """

    def __init__(
        self,
        posterior: Posterior[Any],
        objective: Any,
        optimizer: Any,
        fabric: Fabric,
        settings: dict[str, Any],
        gradient_clip: float | None,
    ):
        self.posterior = posterior
        self.objective = objective
        self.optimizer = optimizer
        self.fabric = fabric
        self.settings = settings
        self.gradient_clip = gradient_clip
        self.count = 0
        self._statistics = posterior.statistics()
        self._sums: dict[str, float] = {}
        self._summed = 0

    def pretrain(self) -> None:
        """Steps of helper networks before the first training step."""
        self.posterior.train()
        for _ in range(self.posterior.weights.pretraining_steps):
            self._update(self._auxiliary_loss())

    def step(self, batch: Any, beta: float) -> dict[str, float] | None:
        """One step; its terms, or None where the device has not been asked for them."""
        batch = move(as_batch(batch), self.fabric.device)
        with self._statistics_kept():
            for _ in range(self.posterior.weights.auxiliary_steps):
                self._update(self._auxiliary_loss())
            terms = self._update(self._losses(batch, beta))
        self.count += 1
        for name, value in terms.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._summed += 1
        return terms

    def means(self) -> dict[str, float]:
        """Means of the terms over the steps since this was last asked; empty if there were none."""
        means = {name: value / self._summed for name, value in self._sums.items()}
        self._sums, self._summed = {}, 0
        return means

    def close(self) -> None:
        """Leaves posterior and optimizer as any other code expects them."""
        if isinstance(self.optimizer.optimizer, FactoredAdam):
            self.optimizer.optimizer.release()

    def _losses(self, batch: Batch, beta: float | Tensor) -> Terms:
        # Mixed precision rounds every tensor it is given: targets and weights go in unseen.
        complete = partial(Batch, targets=batch.targets, weights=batch.weights)
        energy: FreeEnergy = self.objective(batch.inputs, complete, beta=beta, **self.settings)
        # The total last: where a term is not finite, the term is to blame.
        return {
            "nll": energy.nll,
            "complexity": energy.complexity,
            "auxiliary": energy.auxiliary,
            "total": energy.total,
        }

    def _auxiliary_loss(self) -> Terms:
        return {"auxiliary": self.objective(None, None, self.settings["num_samples"])}

    def _backward(self, terms: Terms) -> Terms:
        """Gradients of the last term; all terms as plain numbers, and the gradient's norm."""
        self.optimizer.zero_grad(set_to_none=True)
        self.fabric.backward(next(reversed(terms.values())))
        self.fabric.strategy.precision.unscale_gradients(self.optimizer.optimizer)
        norm = total_norm(self.posterior.parameters())
        plain = {name: term.detach().to(norm.dtype) for name, term in terms.items()}
        return plain | {"gradient_norm": norm}

    def _clip_and_step(self, norm: Tensor) -> None:
        if self.gradient_clip is not None:
            clip_(self.posterior.parameters(), self.gradient_clip, norm)
        self.optimizer.step()

    @contextmanager
    def _statistics_kept(self) -> Generator[None]:
        """Undoes a failed step's mark on the network's buffers: batch norm writes as it reads."""
        saved = [(value, value.clone()) for value in self._statistics]
        try:
            yield
        except DivergedError:
            for value, before in saved:
                value.copy_(before)
            raise

    def _update(self, losses: Terms) -> dict[str, float]:
        """One optimizer step, unless a term or the gradient is not finite; all as numbers."""
        terms = self._backward(losses)
        # One read for all of them: each by itself would stall an accelerator.
        numbers = torch.stack(list(terms.values())).tolist()
        values: dict[str, float] = dict(zip(terms, numbers, strict=True))
        # Half precision finds its loss scale by overflowing; the scaler skips such a step itself.
        scaled = getattr(self.fabric.strategy.precision, "scaler", None) is not None
        if scaled and not isfinite(values["gradient_norm"]):
            values["gradient_norm"] = 0.0
        for name, value in values.items():
            if not isfinite(value):
                raise DivergedError(name, self.count + 1, value)
        self._clip_and_step(terms["gradient_norm"])
        return values
