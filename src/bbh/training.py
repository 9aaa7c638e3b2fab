"""fit: the one training loop, on Lightning Fabric."""

import math
import time
from collections.abc import Callable, Generator, Iterable, Sized
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from bbh import checkpoints
from bbh.batches import Batch, Inputs, as_batch, move, num_data_of
from bbh.history import EpochRecord, History
from bbh.objective import Constant, FreeEnergy, Schedule, free_energy
from bbh.posterior import Posterior
from bbh.prediction import evaluate
from bbh.progress import Display, make_display

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
MakeScheduler = Callable[[Optimizer], LRScheduler]
Complete = Callable[[Inputs], Batch]


class DivergedError(FloatingPointError):
    """Training produced a value that is not finite.

    The posterior holds the state before the step that failed.

    Attributes:
        term: Which one: nll, complexity, auxiliary or gradient.
        history: The records up to then.
    """

    def __init__(self, term: str, step: int, value: float, history: History):
        super().__init__(
            f"training stopped at step {step}: the {term} is {value}. The posterior keeps its "
            "state from before that step. Common remedies: a lower learning rate, "
            "gradient_clip=1.0, annealing the complexity with beta=bbh.Linear(5, 20), and a look "
            "at the inputs for NaN or very large values."
        )
        self.term = term
        self.history = history


def fit(
    posterior: Posterior[Any],
    train_loader: Iterable[Any],
    *,
    epochs: int,
    num_data: int | None = None,
    learning_rate: float = 1e-3,
    optimizer: MakeOptimizer | None = None,
    scheduler: MakeScheduler | None = None,
    schedule_each_step: bool = False,
    beta: Schedule | None = None,
    temperature: float = 1.0,
    num_samples: int | None = None,
    likelihood_samples: int | None = None,
    gradient_clip: float | None = None,
    validation_loader: Iterable[Any] | None = None,
    validation_samples: int = 10,
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    fabric: Fabric | None = None,
    progress: bool = True,
    log_dir: str | Path | None = None,
) -> History:
    """Trains a posterior, whatever its method, and returns a record of every epoch.

    Args:
        posterior: Trained in place, and moved to the device Fabric chooses.
        train_loader: Yields ``(inputs, targets)``, ``(inputs, targets, weights)`` or dictionaries.
        epochs: Passes over it, in total (also when resuming).
        num_data: N; None takes the length of the loader's dataset. Never guessed from batches.
        learning_rate: Of Adam, unless ``optimizer`` is given.
        optimizer: Makes one from the parameters, e.g. ``lambda p: torch.optim.SGD(p, lr=0.1)``.
        scheduler: Makes a learning-rate schedule from the optimizer.
        schedule_each_step: Advance the schedule every step instead of every epoch.
        beta: Annealing of the complexity: :class:`~bbh.Constant`, :class:`~bbh.Linear`,
            :class:`~bbh.Cosine` or any function of the (fractional) epoch.
        temperature: Constant factor on the complexity.
        num_samples: Weight draws per step; None takes the method's own number.
        likelihood_samples: How many of them enter the likelihood; None takes all.
        gradient_clip: Largest global norm of the gradient.
        validation_loader: Evaluated after every epoch.
        validation_samples: Weight draws for that.
        patience: Stop after this many epochs without a better validation NLL. With a validation
            loader and ``patience``, the best epoch's state is restored at the end.
        checkpoint: File to write after every epoch.
        resume: Go on from that file if it exists; on a CPU the result is bit for bit that of an
            uninterrupted run.
        fabric: Lightning Fabric for devices, precision and distribution; None takes one device.
        progress: Show a progress bar.
        log_dir: Write TensorBoard logs there.

    Raises:
        DivergedError: A term or the gradient is not finite.
    """
    if epochs < 1:
        raise ValueError(f"epochs={epochs}: train for at least one.")
    if patience is not None and validation_loader is None:
        raise ValueError("patience needs a validation_loader to judge by.")
    num_data = num_data if num_data is not None else num_data_of(train_loader)
    fabric = fabric or Fabric(accelerator="auto", devices=1)
    make = optimizer or partial(torch.optim.Adam, lr=learning_rate)
    objective, wrapped = fabric.setup(
        _Objective(posterior), make(p for p in posterior.parameters() if p.requires_grad)
    )
    loop = _Loop(
        posterior=posterior,
        objective=objective,
        optimizer=wrapped,
        scheduler=scheduler(wrapped.optimizer) if scheduler else None,
        schedule_each_step=schedule_each_step,
        fabric=fabric,
        settings={
            "num_data": num_data,
            "temperature": temperature,
            "num_samples": num_samples,
            "likelihood_samples": likelihood_samples,
        },
        beta=beta or Constant(),
        gradient_clip=gradient_clip,
    )
    if isinstance(train_loader, DataLoader):
        train_loader = fabric.setup_dataloaders(train_loader)
    path = None if checkpoint is None else Path(checkpoint)
    generators = checkpoints.loader_generators(train_loader)
    if path is not None and path.exists():
        if not resume:
            raise FileExistsError(
                f"{path} exists. Pass resume=True to go on from it, or another checkpoint path."
            )
        loop.restore(checkpoints.read(path), generators, path)
    else:
        loop.pretrain()
    steps_per_epoch = _length(train_loader)
    visible, log_dir = (progress, log_dir) if fabric.is_global_zero else (False, None)
    with make_display(visible, epochs, steps_per_epoch, log_dir) as show:
        while len(loop.records) < epochs and not loop.out_of_patience(patience):
            started = time.perf_counter()
            means = loop.epoch(train_loader, steps_per_epoch, show)
            metrics: dict[str, float] = {}
            if validation_loader is not None:
                metrics = evaluate(posterior, validation_loader, validation_samples)
                # Draws differ between processes, and all must stop in the same epoch.
                metrics = fabric.broadcast(metrics)
            loop.finish_epoch(means, metrics, time.perf_counter() - started, keep_best=patience)
            show.epoch(loop.records[-1])
            if path is not None and fabric.is_global_zero:
                checkpoints.write(path, loop.state(generators))
            fabric.barrier()
    return loop.finish()


def _length(loader: Iterable[Any]) -> int | None:
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # a DataLoader of a stream has the method and no answer
        return None


class _Objective(nn.Module):
    """The free energy as a module's forward pass, which is what distribution wraps."""

    def __init__(self, posterior: Posterior[Any]):
        super().__init__()
        self.posterior = posterior

    def forward(
        self, inputs: Inputs, complete: Complete | None, num_samples: int | None, **settings: Any
    ) -> Any:
        if complete is not None:
            batch = complete(inputs)
            return free_energy(self.posterior, batch, num_samples=num_samples, **settings)
        # Helper networks alone: no gradient is wanted for the weights they look at.
        weights = self.posterior.weights
        with torch.no_grad():
            samples = weights.sample(num_samples or weights.samples_per_step)
        return weights.cost(samples, self.posterior.prior).auxiliary


@dataclass
class _Loop:
    """The state of a training run."""

    posterior: Posterior[Any]
    objective: Any
    optimizer: Any
    scheduler: LRScheduler | None
    schedule_each_step: bool
    fabric: Fabric
    settings: dict[str, Any]
    beta: Schedule
    gradient_clip: float | None

    def __post_init__(self):
        if self.schedule_each_step and isinstance(self.scheduler, ReduceLROnPlateau):
            raise ValueError("ReduceLROnPlateau judges epochs: leave out schedule_each_step.")
        self.records: list[EpochRecord] = []
        self.step = 0
        self.best_epoch: int | None = None
        self.best_state: dict[str, Tensor] = {}

    def pretrain(self) -> None:
        """Steps of helper networks before the first epoch."""
        self.posterior.train()
        self._auxiliary_steps(self.posterior.weights.pretraining_steps)

    def epoch(
        self, loader: Iterable[Any], steps_per_epoch: int | None, show: Display
    ) -> dict[str, float]:
        """One pass over the data; means of the objective's terms."""
        self.posterior.train()
        start = self.step
        number = len(self.records)
        sums: Tensor | None = None
        beta = self.beta(float(number))
        for batch in loader:
            done = self.step - start
            # Without a length the schedule moves once per epoch.
            beta = self.beta(number + (done / steps_per_epoch if steps_per_epoch else 0.0))
            with self._statistics_kept():
                energy, norm = self._train_step(batch, beta)
            terms = torch.stack([*(term.detach() for term in energy), norm]).double()
            sums = terms if sums is None else sums + terms
            show.step(number, done, energy)
        if sums is None:
            raise ValueError("the training loader is empty.")
        names = (*FreeEnergy._fields, "gradient_norm")
        means = (sums / (self.step - start)).tolist()
        return dict(zip(names, means, strict=True)) | {"beta": beta}

    def finish_epoch(
        self,
        means: dict[str, float],
        metrics: dict[str, float],
        seconds: float,
        keep_best: int | None,
    ) -> None:
        """Records the epoch, moves the schedule, remembers the best state."""
        rate = float(self.optimizer.param_groups[0]["lr"])
        record = EpochRecord(
            epoch=len(self.records) + 1,
            step=self.step,
            learning_rate=rate,
            seconds=seconds,
            validation=metrics,
            **means,
        )
        self.records.append(record)
        if keep_best is not None:
            best = math.inf if self.best_epoch is None else self._validation_nll(self.best_epoch)
            if metrics["nll"] < best:
                self.best_epoch = record.epoch
                self.best_state = checkpoints.detached_copy(self.posterior.state_dict())
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(metrics.get("nll", record.total))
        elif self.scheduler is not None and not self.schedule_each_step:
            self.scheduler.step()

    def out_of_patience(self, patience: int | None) -> bool:
        """Whether the best epoch lies too far back."""
        if patience is None or not self.records:
            return False
        return self.records[-1].epoch - (self.best_epoch or 0) >= patience

    def finish(self) -> History:
        """Restores the best state, if one was kept."""
        if self.best_epoch is not None:
            self.posterior.load_state_dict(self.best_state)
        self.posterior.eval()
        return History(self.records, self.best_epoch)

    def state(self, generators: list[torch.Generator]) -> dict[str, Any]:
        """Everything a resumed run needs."""
        return {
            "posterior": self.posterior.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler else None,
            "kinds": self._kinds(),
            "precision": self.fabric.strategy.precision.state_dict(),
            "step": self.step,
            "records": [asdict(record) for record in self.records],
            "best_epoch": self.best_epoch,
            "best_state": self.best_state,
            "random": checkpoints.random_state(generators),
        }

    def restore(self, state: dict[str, Any], generators: list[torch.Generator], path: Path) -> None:
        """Continues where :meth:`state` was taken."""
        try:
            if state["kinds"] != self._kinds():
                raise ValueError(f"it was written with {state['kinds']}, not {self._kinds()}.")
            self.posterior.load_state_dict(state["posterior"])
            self.optimizer.load_state_dict(state["optimizer"])
            if self.scheduler is not None:
                self.scheduler.load_state_dict(state["scheduler"])
            self.fabric.strategy.precision.load_state_dict(state["precision"])
            checkpoints.restore_random_state(state["random"], generators)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise checkpoints.CheckpointError(
                f"{path} belongs to another posterior, optimizer or loader: {error}"
            ) from error
        self.step = state["step"]
        self.records = [EpochRecord(**record) for record in state["records"]]
        self.best_epoch = state["best_epoch"]
        self.best_state = state["best_state"]

    @contextmanager
    def _statistics_kept(self) -> Generator[None]:
        """Undoes a failed step's mark on the network's buffers: batch norm writes as it reads."""
        own = {name for name, _ in self.posterior.network.named_buffers()}
        # Not all buffers: frozen parameters are among them, large and never written to.
        saved = [
            (value, value.clone())
            for name, value in self.posterior.named_buffers()
            if name.rpartition(".")[2].replace("/", ".") in own
        ]
        try:
            yield
        except DivergedError:
            for value, before in saved:
                value.copy_(before)
            raise

    def _train_step(self, batch: Any, beta: float) -> tuple[FreeEnergy, Tensor]:
        self._auxiliary_steps(self.posterior.weights.auxiliary_steps)
        batch = move(as_batch(batch), self.fabric.device)
        # Mixed precision rounds every tensor it is given: targets and weights go in unseen.
        complete = partial(Batch, targets=batch.targets, weights=batch.weights)
        energy: FreeEnergy = self.objective(batch.inputs, complete, beta=beta, **self.settings)
        for term in ("nll", "complexity", "auxiliary"):
            self._check_finite(term, getattr(energy, term))
        norm = self._update(energy.total)
        self.step += 1
        if self.schedule_each_step and self.scheduler is not None:
            self.scheduler.step()
        return energy, norm

    def _auxiliary_steps(self, number: int) -> None:
        for _ in range(number):
            auxiliary = self.objective(None, None, self.settings["num_samples"])
            self._check_finite("auxiliary", auxiliary)
            self._update(auxiliary)

    def _update(self, loss: Tensor) -> Tensor:
        """One optimizer step, unless the gradient is not finite."""
        self.optimizer.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        precision = self.fabric.strategy.precision
        precision.unscale_gradients(self.optimizer.optimizer)
        gradients = [p.grad for p in self.posterior.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        # Half precision finds its loss scale by overflowing; the scaler skips such a step itself.
        if getattr(precision, "scaler", None) is None:
            self._check_finite("gradient", norm)
        if self.gradient_clip is not None:
            trained = self.posterior.parameters()
            nn.utils.clip_grads_with_norm_(trained, self.gradient_clip, norm)
        self.optimizer.step()
        return norm.detach().nan_to_num(posinf=0.0)  # a skipped step moved by nothing

    def _check_finite(self, term: str, value: Tensor) -> None:
        if not torch.isfinite(value):
            raise DivergedError(term, self.step + 1, float(value.detach()), History(self.records))

    def _kinds(self) -> list[str]:
        """Whose state is whose: one optimizer would take another's without a word."""
        parts = (self.optimizer.optimizer, self.scheduler)
        return ["nothing" if part is None else type(part).__name__ for part in parts]

    def _validation_nll(self, epoch: int) -> float:
        return self.records[epoch - 1].validation["nll"]
