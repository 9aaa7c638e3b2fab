"""One training step: the objective, its gradient, a check that all is finite, the update."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bbh import checks
from bbh.batches import Batch, Inputs, as_batch, move
from bbh.execution import Execution
from bbh.generators.factored.gradients import clip_, stop_collecting, total_norm
from bbh.generators.factored.optimizer import FactoredOptimizer
from bbh.memory import keep_freed_memory
from bbh.objective import (
    FreeEnergy,
    auxiliary_loss,
    check_settings,
    free_energy,
    own_temperature,
)
from bbh.posterior import Posterior
from bbh.processes import averaged, share_frozen
from bbh.threads import Work, threads_for
from bbh.training.sharding import Shards, is_sharded, passes_through, whole_tensor
from bbh.training.verdicts import (
    STATISTICS,
    UPDATE,
    Before,
    DivergedError,
    HostVerdict,
    Terms,
    Verdict,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric


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
        optimizer: An optimizer of the posterior's parameters, or a function that makes one from
            them. With a ``sharded_strategy`` it must be a function, since the parameters are
            replaced by shards.
        num_data: N, the number of examples in the whole training set, not in the batch.
        temperature: Constant factor on the complexity; None takes the method's own for so many
            weights and data, see ``fit``.
        num_samples: The number of weight draws; None takes the method's own number.
        likelihood_samples: How many of these draws enter the likelihood; None takes the method's
            own number.
        gradient_clip: Largest global norm of the gradient; None for no limit.
        fabric: Lightning Fabric for device, precision and distribution; None uses plain PyTorch.
            With several processes, terms and running statistics of batch norm are means over all.
        num_threads: Threads of a step on a CPU; None takes one for tiny networks and batches, and
            torch's own number for all others.

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
        temperature: float | None = None,
        num_samples: int | None = None,
        likelihood_samples: int | None = None,
        gradient_clip: float | None = None,
        fabric: "Fabric | None" = None,
        num_threads: int | None = None,
    ):
        self.settings: dict[str, Any] = {
            "num_data": num_data,
            "temperature": temperature,
            "num_samples": num_samples,
            "likelihood_samples": likelihood_samples,
        }
        check_settings(posterior, **self.settings)
        if temperature is None:
            self.settings["temperature"] = own_temperature(posterior, num_data)
        if gradient_clip is not None:
            checks.number("gradient_clip", gradient_clip, positive=True)
        keep_freed_memory()
        self.posterior = posterior.train()
        self.fabric = fabric
        self.count = 0
        self.device = posterior.device if fabric is None else fabric.device
        self._num_threads = num_threads
        self._work = Work(posterior)
        self._objective: Any = _Objective(posterior)
        self._shards: Shards | None = None
        if is_sharded(fabric):
            self._shards = Shards(posterior, self._objective, cast("Fabric", fabric))
            self._objective = self._shards.objective
        self.optimizer: Any = self._made(optimizer)
        if fabric is not None:
            if self._shards is not None:
                self.optimizer = fabric.setup_optimizers(self.optimizer)
            else:
                wrapped, self.optimizer = fabric.setup(self._objective, self.optimizer)
                if not passes_through(fabric):
                    self._objective = wrapped
            share_frozen(fabric, posterior.frozen)
        self.gradient_clip = gradient_clip
        if not isinstance(self.plain_optimizer, FactoredOptimizer):
            # An earlier optimizer may not have been closed; this one needs whole gradients.
            for matrix in posterior.weights.factored_parameters():
                stop_collecting(matrix)
        groups: list[dict[str, Any]] = self.plain_optimizer.param_groups
        self._parameters: list[nn.Parameter] = [p for group in groups for p in group["params"]]
        for name, value in (item for group in groups for item in group.items()):
            if isinstance(value, float) and not isfinite(value):
                raise ValueError(f"the optimizer has {name}={value}: give a finite number.")
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
            DivergedError: A term, the gradient, a running statistic of batch norm or the update is
                not finite. The state is then that from before the step: weights, statistics,
                helper networks, optimizer, and PyTorch's random numbers.
        """
        if not self.posterior.training:
            self.posterior.train()
        verdict = HostVerdict(self.count + 1, may_overflow=self._scales_losses)
        moved = move(as_batch(batch), self.device)
        draws = self.settings["num_samples"] or self.posterior.weights.samples_per_step
        work = self._work(draws, moved.inputs)
        with threads_for(work, self.device, self._num_threads):
            self.run(moved, beta, verdict, execution)
        self.count += 1
        return verdict.numbers

    def run(
        self,
        batch: Batch,
        beta: float | Tensor,
        verdict: Verdict,
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
        with verdict.undoing(self._before()) as before:
            # Asked for anew in every step: a posterior that is moved or loaded has other tensors.
            before.keep(self.posterior.statistics())
            for _ in range(self.posterior.weights.auxiliary_steps):
                self._update(self._auxiliary_loss(), verdict, before=before)
            losses = self._losses(batch, beta, execution)
            # The forward pass has updated them.
            running = self.posterior.running_statistics()
            return self._update(losses, verdict, running=running)

    def pretrain(self) -> None:
        """Trains the helper networks alone, before the first training step."""
        self.posterior.train()
        for _ in range(self.posterior.weights.pretraining_steps):
            verdict = HostVerdict(self.count + 1, may_overflow=self._scales_losses)
            with verdict.undoing(self._before()):
                self._update(self._auxiliary_loss(), verdict)

    def check_parameters(self) -> None:
        """Raises if a parameter is not finite.

        Steps prevent updates that would overflow, as far as they can foresee what the optimizer
        does. ``fit`` therefore calls this once per epoch.
        """
        with torch.no_grad():
            largest = (
                float(nn.utils.get_total_norm(self._parameters, inf))
                if self._shards is None
                else self._shards.largest(self._parameters)
            )
        if not isfinite(largest):
            raise DivergedError("parameter_norm", self.count, largest)

    def close(self) -> None:
        """Ends training and undoes what the optimizer changed about the posterior."""
        if isinstance(self.plain_optimizer, FactoredOptimizer):
            self.plain_optimizer.release()

    def put_together(self) -> AbstractContextManager[None]:
        """Within the block the posterior has its whole parameters, also if they are in shards.

        All processes must enter it.
        """
        return nullcontext() if self._shards is None else self._shards.put_together()

    def whole_again(self) -> None:
        """Ends training in shards: every process has the whole posterior again.

        All processes must call this. Without shards it does nothing.
        """
        if self._shards is not None:
            self._shards.whole_again()

    @property
    def plain_optimizer(self) -> Any:
        """The optimizer as it was given, without Fabric's wrapper."""
        return self.optimizer if self.fabric is None else self.optimizer.optimizer

    def _made(self, optimizer: Any) -> Any:
        """The optimizer, made from the posterior's parameters if a function was given."""
        if not isinstance(optimizer, Optimizer) and callable(optimizer):
            return optimizer(one for one in self.posterior.parameters() if one.requires_grad)
        if self._shards is not None:
            raise TypeError(
                "with a sharded strategy the parameters are replaced by shards: pass a function "
                "that makes the optimizer, e.g. lambda parameters: torch.optim.Adam(parameters)."
            )
        return optimizer

    def _whole(self, value: Tensor) -> Tensor:
        return value if self._shards is None else whole_tensor(value)

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

    def _before(self) -> Before:
        return Before(self.plain_optimizer, self.device)

    def _update(
        self,
        losses: Terms,
        verdict: Verdict,
        *,
        running: Sequence[Tensor] = (),
        before: Before | None = None,
    ) -> Terms:
        """Takes one optimizer step on the last of the losses, unless the verdict prevents it.

        Args:
            losses: The terms of the objective.
            verdict: Checks the terms.
            running: Running statistics of batch norm, to check as well.
            before: Remembers what this update changes, since a later one may fail.
        """
        self.optimizer.zero_grad(set_to_none=True)
        loss = next(reversed(losses.values()))
        if self.fabric is None:
            loss.backward()
        else:
            self.fabric.backward(loss)
            self.fabric.strategy.precision.unscale_gradients(self.plain_optimizer)
        if self._shards is not None:
            self._shards.average_the_rest(self._parameters)
        norm = self._whole(total_norm(self._parameters))
        terms = {name: term.detach().to(norm.dtype) for name, term in losses.items()}
        terms = self._agreed(terms | {"gradient_norm": norm}, running)
        norm = terms["gradient_norm"]
        checked = {name: terms[name] for name in losses}
        if running:
            checked[STATISTICS] = nn.utils.get_total_norm(running, inf).to(norm)
        checked |= {"gradient_norm": norm, UPDATE: self._update_bound(norm)}
        verdict.judge(checked)
        if before is not None:
            before.keep_trained(self._parameters)
        if self.gradient_clip is not None:
            clip_(self._parameters, self.gradient_clip, norm)
        self.optimizer.step()
        return terms

    def _agreed(self, terms: Terms, running: Sequence[Tensor]) -> Terms:
        """The terms as means over all processes, so that all decide alike whether a step fails.

        Running statistics become means in place.
        """
        if self.fabric is None or self.fabric.world_size == 1:
            return terms
        means = averaged(self.fabric, [*terms.values(), *running])
        for statistic, mean in zip(running, means[len(terms) :], strict=True):
            statistic.copy_(mean)
        return dict(zip(terms, means[: len(terms)], strict=True))

    def _update_bound(self, norm: Tensor) -> Tensor:
        """Infinite if the update would leave weights that overflow.

        Optimizers move weights by the learning rate times the gradient, or times about one (Adam).
        The margin is for what else they do, and for the weights' squares in the next step.
        """
        rate = sum(group.get("lr", 0.0) for group in self.plain_optimizer.param_groups)
        if self.gradient_clip is not None:
            norm = norm.clamp(max=self.gradient_clip)
        margin = torch.finfo(norm.dtype).max ** 0.25
        return norm.clamp(min=1.0) * rate * margin


class _Objective(nn.Module):
    """The free energy as the forward pass of a module, which Fabric can wrap and distribute."""

    def __init__(self, posterior: Posterior[Any]):
        super().__init__()
        self.posterior = posterior
        # DistributedDataParallel would send all buffers to every process in every step, and frozen
        # parameters are kept as buffers. They are sent once, by ``TrainingStep``.
        frozen = posterior.frozen.state_names()
        self._ddp_params_and_buffers_to_ignore = [f"posterior.frozen.{name}" for name in frozen]

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
        return auxiliary_loss(self.posterior, num_samples)


def scales_losses(fabric: "Fabric") -> bool:
    """Whether losses are scaled up, so that gradients in half precision do not vanish."""
    return getattr(fabric.strategy.precision, "scaler", None) is not None
