"""One training step: the objective, its gradient, a check that all is finite, the update."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bbh import checks
from bbh.batches import Batch, Inputs, as_batch, move
from bbh.execution import Execution
from bbh.generators.factored.adam import FactoredAdam
from bbh.generators.factored.gradients import clip_, stop_collecting, total_norm
from bbh.objective import FreeEnergy, check_settings, free_energy
from bbh.posterior import Posterior
from bbh.training.history import History

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# The terms of the objective by name; the last one is minimised.
Terms = dict[str, Tensor]
# Largest running statistic of batch norm: checked like a term, but not a term.
STATISTICS = "batch_norm_statistics"


class DivergedError(FloatingPointError):
    """Training produced a value that is not finite.

    The posterior keeps its weights from before the step that failed. Helper networks (a critic) may
    have taken their own steps before it.

    Attributes:
        term: Name of the value: nll, complexity, auxiliary, total, gradient_norm, or
            batch_norm_statistics for the running means and variances of normalisation layers.
        history: The records of the epochs before.
    """

    def __init__(self, term: str, step: int, value: float):
        super().__init__(
            f"training stopped at step {step}: the {term} is {value}. The weights are "
            "those from before that step. Common remedies: a lower learning rate, "
            "gradient_clip=1.0, annealing the complexity with beta=bbh.Linear(5, 20), and a look "
            "at the inputs for NaN or very large values."
        )
        self.term = term
        self.history = History()


class TrainingStep:
    """A training step, used by ``fit`` and ready for use in a training loop of your own.

    >>> import bbh
    >>> posterior = bbh.methods.bayes_by_backprop(nn.Linear(2, 3), bbh.likelihoods.Categorical())
    >>> optimizer = torch.optim.Adam(posterior.parameters(), lr=1e-3)
    >>> step = bbh.TrainingStep(posterior, optimizer, num_data=100)
    >>> sorted(step((torch.zeros(10, 2), torch.zeros(10, dtype=torch.long))))
    ['auxiliary', 'complexity', 'gradient_norm', 'nll', 'total']

    Args:
        posterior: The posterior to train; it is put into training mode.
        optimizer: An optimizer of the posterior's parameters.
        num_data: N, the number of examples in the whole training set, not in the batch.
        temperature: Constant factor on the complexity, see ``free_energy``.
        num_samples: The number of weight draws; None takes the method's own number.
        likelihood_samples: How many of these draws enter the likelihood; None takes the method's
            own number.
        gradient_clip: Largest global norm of the gradient; None for no limit.
        fabric: Lightning Fabric for device, precision and distribution; None uses plain PyTorch.

    Attributes:
        count: The number of steps taken.
        device: The device that batches are moved to.
        settings: The arguments of ``free_energy``: num_data, temperature and numbers of draws.
        gradient_clip: Largest global norm of the gradient; None for no limit.
    """

    def __init__(
        self,
        posterior: Posterior[Any],
        optimizer: Any,
        *,
        num_data: int,
        temperature: float = 1.0,
        num_samples: int | None = None,
        likelihood_samples: int | None = None,
        gradient_clip: float | None = None,
        fabric: "Fabric | None" = None,
    ):
        self.settings: dict[str, Any] = {
            "num_data": num_data,
            "temperature": temperature,
            "num_samples": num_samples,
            "likelihood_samples": likelihood_samples,
        }
        check_settings(posterior, **self.settings)
        if gradient_clip is not None:
            checks.number("gradient_clip", gradient_clip, positive=True)
        self.posterior = posterior.train()
        self.fabric = fabric
        self.count = 0
        self.device = posterior.device if fabric is None else fabric.device
        self._objective: Any = _Objective(posterior)
        self.optimizer = optimizer
        if fabric is not None:
            self._objective, self.optimizer = fabric.setup(self._objective, optimizer)
        self.gradient_clip = gradient_clip
        if not isinstance(self.plain_optimizer, FactoredAdam):
            # An earlier optimizer may not have been closed; this one needs whole gradients.
            for matrix in posterior.weights.factored_parameters():
                stop_collecting(matrix)
        groups: list[dict[str, Any]] = self.plain_optimizer.param_groups
        self._parameters: list[nn.Parameter] = [p for group in groups for p in group["params"]]
        if not {id(one) for one in self._parameters} & {id(one) for one in posterior.parameters()}:
            raise ValueError(
                "the optimizer has no parameter of the posterior, so it would train nothing. Make "
                "it from posterior.parameters(), not from the network's."
            )

    def __call__(
        self, batch: Any, beta: float = 1.0, *, execution: Execution | None = None
    ) -> dict[str, float]:
        """Takes one step and returns its terms as numbers.

        Args:
            batch: ``(inputs, targets)``, ``(inputs, targets, weights)`` or a dictionary.
            beta: Weight of the complexity.
            execution: How to put draws through the network; None takes the posterior's default.

        Raises:
            DivergedError: A term, the gradient or a running statistic of batch norm is not
                finite. The weights and the statistics are unchanged then.
        """
        if not self.posterior.training:
            self.posterior.train()
        verdict = HostVerdict(self.count + 1, may_overflow=self._scales_losses)
        self.run(move(as_batch(batch), self.device), beta, verdict, execution)
        self.count += 1
        return verdict.numbers

    def run(
        self,
        batch: Batch,
        beta: float | Tensor,
        verdict: "Verdict",
        execution: Execution | None = None,
    ) -> Terms:
        """Takes one step on a batch that is already on the device.

        Args:
            batch: The batch.
            beta: Weight of the complexity.
            verdict: Checks the terms, and prevents the update if one is not finite.
            execution: How to put draws through the network.

        Returns:
            The terms of the objective, without gradient.
        """
        # Asked for anew in every step: a posterior that is moved or loaded has other tensors.
        with verdict.undoing(self.posterior.statistics()):
            for _ in range(self.posterior.weights.auxiliary_steps):
                self._update(self._auxiliary_loss(), verdict)
            losses = self._losses(batch, beta, execution)
            # The forward pass has updated them.
            running = self.posterior.running_statistics()
            return self._update(losses, verdict, running)

    def pretrain(self) -> None:
        """Trains the helper networks alone, before the first training step."""
        self.posterior.train()
        for _ in range(self.posterior.weights.pretraining_steps):
            verdict = HostVerdict(self.count + 1, may_overflow=self._scales_losses)
            self._update(self._auxiliary_loss(), verdict)

    def close(self) -> None:
        """Ends training and undoes what the optimizer changed about the posterior."""
        if isinstance(self.plain_optimizer, FactoredAdam):
            self.plain_optimizer.release()

    @property
    def plain_optimizer(self) -> Any:
        """The optimizer as it was given, without Fabric's wrapper."""
        return self.optimizer if self.fabric is None else self.optimizer.optimizer

    @property
    def _scales_losses(self) -> bool:
        return self.fabric is not None and scales_losses(self.fabric)

    def _losses(self, batch: Batch, beta: float | Tensor, execution: Execution | None) -> Terms:
        # Mixed precision rounds every tensor argument of the module it wraps. Targets and weights
        # must not be rounded, so they are passed inside a function.
        complete = partial(Batch, targets=batch.targets, weights=batch.weights)
        energy: FreeEnergy = self._objective(
            batch.inputs, complete, beta=beta, execution=execution, **self.settings
        )
        # The total comes last, so that an error message names the single term that is not finite.
        return {
            "nll": energy.nll,
            "complexity": energy.complexity,
            "auxiliary": energy.auxiliary,
            "total": energy.total,
        }

    def _auxiliary_loss(self) -> Terms:
        return {"auxiliary": self._objective(None, None, self.settings["num_samples"])}

    def _update(self, losses: Terms, verdict: "Verdict", running: Sequence[Tensor] = ()) -> Terms:
        """Takes one optimizer step on the last of the losses, unless the verdict prevents it."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = next(reversed(losses.values()))
        if self.fabric is None:
            loss.backward()
        else:
            self.fabric.backward(loss)
            self.fabric.strategy.precision.unscale_gradients(self.plain_optimizer)
        norm = total_norm(self._parameters)
        terms = {name: term.detach().to(norm.dtype) for name, term in losses.items()}
        checked = dict(terms)
        if running:
            checked[STATISTICS] = nn.utils.get_total_norm(running, inf).to(norm)
        terms["gradient_norm"] = checked["gradient_norm"] = norm
        verdict.judge(checked)
        if self.gradient_clip is not None:
            clip_(self._parameters, self.gradient_clip, norm)
        self.optimizer.step()
        return terms


class _Objective(nn.Module):
    """The free energy as the forward pass of a module, which Fabric can wrap and distribute."""

    def __init__(self, posterior: Posterior[Any]):
        super().__init__()
        self.posterior = posterior

    def forward(
        self,
        inputs: Inputs,
        complete: Callable[[Inputs], Batch] | None,
        num_samples: int | None,
        **settings: Any,
    ) -> Any:
        """The free energy of a batch, or if there is no batch the loss of the helper networks."""
        if complete is not None:
            batch = complete(inputs)
            return free_energy(self.posterior, batch, num_samples=num_samples, **settings)
        # Only helper networks are trained, so the sampled weights need no gradient.
        weights = self.posterior.weights
        with torch.no_grad():
            samples = self.posterior.sample(num_samples or weights.samples_per_step)
        return weights.cost(samples, self.posterior.prior).auxiliary


class Verdict(ABC):
    """Checks that the terms of a step are finite before they change any parameter."""

    @abstractmethod
    def judge(self, terms: Terms) -> None:
        """Checks the terms of an update, and prevents the update if one is not finite."""

    @abstractmethod
    def undoing(self, statistics: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Restores the network's buffers after a failed step.

        Batch norm updates its running statistics in the forward pass, before terms are checked.
        """


class HostVerdict(Verdict):
    """Reads the terms from the device, and raises ``DivergedError`` if one is not finite.

    Args:
        step: Number of the step, for the error message.
        may_overflow: Whether an infinite gradient is no error. In half precision a loss scaler
            tries larger scales until gradients overflow, and skips those updates itself.

    Attributes:
        numbers: The terms of the last check, without the statistics.
    """

    def __init__(self, step: int, *, may_overflow: bool = False):
        self.numbers: dict[str, float] = {}
        self._step = step
        self._may_overflow = may_overflow

    def judge(self, terms: Terms) -> None:
        """Raises for the first term that is not finite."""
        # All terms are read at once, since every single read makes the host wait for the device.
        values = torch.stack(list(terms.values())).tolist()
        numbers = dict(zip(terms, values, strict=True))
        if self._may_overflow and not isfinite(numbers["gradient_norm"]):
            numbers["gradient_norm"] = 0.0
        for name, value in numbers.items():
            if not isfinite(value):
                raise DivergedError(name, self._step, value)
        self.numbers = {name: value for name, value in numbers.items() if name != STATISTICS}

    @contextmanager
    def undoing(self, statistics: Sequence[Tensor]) -> Generator[None]:
        """Restores the buffers if the step raises ``DivergedError``."""
        saved = [value.clone() for value in statistics]
        try:
            yield
        except DivergedError:
            for value, before in zip(statistics, saved, strict=True):
                value.copy_(before)
            raise


def scales_losses(fabric: "Fabric") -> bool:
    """Whether losses are scaled up, so that gradients in half precision do not vanish."""
    return getattr(fabric.strategy.precision, "scaler", None) is not None
