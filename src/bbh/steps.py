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
from bbh.history import History
from bbh.objective import FreeEnergy, free_energy
from bbh.posterior import Posterior

Complete = Callable[[Inputs], Batch]


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

    def pretrain(self) -> None:
        """Steps of helper networks before the first training step."""
        self.posterior.train()
        self._auxiliary_steps(self.posterior.weights.pretraining_steps)

    def step(self, batch: Any, beta: float) -> dict[str, float]:
        """One step; the objective's terms, and the gradient's norm before clipping."""
        with self._statistics_kept():
            self._auxiliary_steps(self.posterior.weights.auxiliary_steps)
            batch = move(as_batch(batch), self.fabric.device)
            # Mixed precision rounds every tensor it is given: targets and weights go in unseen.
            complete = partial(Batch, targets=batch.targets, weights=batch.weights)
            energy: FreeEnergy = self.objective(batch.inputs, complete, beta=beta, **self.settings)
            # The total last: where a term is not finite, the term is to blame.
            terms = self._update(
                energy.total,
                nll=energy.nll,
                complexity=energy.complexity,
                auxiliary=energy.auxiliary,
                total=energy.total,
            )
        self.count += 1
        return terms

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

    def _auxiliary_steps(self, number: int) -> None:
        for _ in range(number):
            auxiliary = self.objective(None, None, self.settings["num_samples"])
            self._update(auxiliary, auxiliary=auxiliary)

    def _update(self, loss: Tensor, **terms: Tensor) -> dict[str, float]:
        """One optimizer step, unless a term or the gradient is not finite; all as numbers."""
        self.optimizer.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        precision = self.fabric.strategy.precision
        precision.unscale_gradients(self.optimizer.optimizer)
        gradients = [p.grad for p in self.posterior.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        terms["gradient_norm"] = norm
        # One read for all of them: each by itself would stall an accelerator.
        numbers = torch.stack([term.detach().to(norm.dtype) for term in terms.values()]).tolist()
        values: dict[str, float] = dict(zip(terms, numbers, strict=True))
        # Half precision finds its loss scale by overflowing; the scaler skips such a step itself.
        if getattr(precision, "scaler", None) is not None and not isfinite(numbers[-1]):
            values["gradient_norm"] = 0.0
        for name, value in values.items():
            if not isfinite(value):
                raise DivergedError(name, self.count + 1, value)
        if self.gradient_clip is not None:
            trained = self.posterior.parameters()
            nn.utils.clip_grads_with_norm_(trained, self.gradient_clip, norm)
        self.optimizer.step()
        return values
