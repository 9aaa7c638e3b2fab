"""fit: the one training loop, on Lightning Fabric."""

import time
from collections.abc import Callable, Iterable, Sized
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from bbh.annealing import Schedule
from bbh.batches import num_data_of
from bbh.generators.factored.adam import make_adam
from bbh.posterior import Posterior
from bbh.prediction import evaluate
from bbh.training import checkpoints
from bbh.training.display import Display, make_display
from bbh.training.history import History
from bbh.training.recorded import RecordedSteps, fastest_convolutions, make_steps
from bbh.training.run import TrainingRun
from bbh.training.step import TrainingStep, scales_losses

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
MakeScheduler = Callable[[Optimizer], LRScheduler]


@dataclass(frozen=True)
class Validation:
    """Data that judge training after every epoch.

    Args:
        loader: Batches of ``(inputs, targets)``.
        num_samples: Weight draws for a prediction.
        patience: Stop after this many epochs without a better NLL on these data, and restore the
            best epoch's state at the end. None trains to the end and keeps the last state.
    """

    loader: Iterable[Any]
    num_samples: int = 10
    patience: int | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A file from which interrupted training goes on.

    Args:
        path: The file; written after every epoch.
        resume: Go on from it if it exists; on a CPU the result is bit for bit that of an
            uninterrupted run. Without this an existing file is an error.
        seconds: Write it at the earliest this long after the last time; for large posteriors,
            whose state takes longer to write than an epoch to train.
    """

    path: str | Path
    resume: bool = False
    seconds: float = 0.0


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
    beta: float | Schedule = 1.0,
    temperature: float = 1.0,
    num_samples: int | None = None,
    likelihood_samples: int | None = None,
    gradient_clip: float | None = None,
    validation: Validation | Iterable[Any] | None = None,
    average_epochs: int = 0,
    checkpoint: Checkpoint | str | Path | None = None,
    fabric: Fabric | None = None,
    cuda_graph: bool = True,
    progress: bool | Display = True,
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
        beta: Weight of the complexity: a number, or annealing by ``Linear``,
            ``Cosine`` or any function of the (fractional) epoch.
        temperature: Constant factor on the complexity.
        num_samples: Weight draws per step; None takes the method's own number.
        likelihood_samples: How many of them enter the likelihood; None takes all.
        gradient_clip: Largest global norm of the gradient.
        validation: Batches to evaluate on after every epoch, or ``bbh.Validation`` with more to
            say: how many draws, and the patience after which training stops.
        average_epochs: End with the mean of the parameters after each of this many last epochs
            (stochastic weight averaging, Izmailov et al. 2018) instead of the last ones. Networks
            with batch norm need ``refresh_batch_norm`` then.
        checkpoint: File to write after every epoch, or ``bbh.Checkpoint`` to go on from it.
        fabric: Lightning Fabric for devices, precision and distribution; None takes one device.
        cuda_graph: On a CUDA device, record a step once and replay it. What a network decides on
            the host (layers left out at random, say) is then decided once: pass False for it.
        progress: Show a progress bar, or what to show steps and epochs with.
        log_dir: Write TensorBoard logs there.

    Raises:
        DivergedError: A term or the gradient is not finite.
    """
    if not isinstance(posterior, Posterior):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"fit(posterior, train_loader): the first argument is a {type(posterior).__name__}; "
            "make a posterior with one of bbh.methods."
        )
    if isinstance(optimizer, Optimizer):
        raise TypeError(
            "optimizer= takes a function that makes one, since the parameters may move to another "
            "device first: optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3)."
        )
    if epochs < 1:
        raise ValueError(f"epochs={epochs}: train for at least one.")
    if validation is not None and not isinstance(validation, Validation):
        validation = Validation(validation)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    patience = None if validation is None else validation.patience
    if not 0 <= average_epochs <= epochs:
        raise ValueError(f"average_epochs={average_epochs}: there are {epochs} epochs.")
    if average_epochs and patience is not None:
        raise ValueError("patience keeps the best epoch and average_epochs a mean: choose one.")
    if schedule_each_step and scheduler is None:
        raise ValueError("schedule_each_step=True needs a scheduler.")
    if num_samples is not None and num_samples < 1:
        raise ValueError(f"num_samples={num_samples}: draw at least one, or None.")
    num_data = num_data if num_data is not None else num_data_of(train_loader)
    fabric = fabric or Fabric(accelerator="auto", devices=1)
    # First of all: what an optimizer does best depends on the device.
    posterior.to(fabric.device)
    make = optimizer or partial(_default_optimizer, posterior, fabric, learning_rate)
    step = TrainingStep(
        posterior,
        make(p for p in posterior.parameters() if p.requires_grad),
        num_data=num_data,
        temperature=temperature,
        num_samples=num_samples,
        likelihood_samples=likelihood_samples,
        gradient_clip=gradient_clip,
        fabric=fabric,
    )
    steps = make_steps(step, cuda_graph=cuda_graph)
    algorithms = fastest_convolutions() if isinstance(steps, RecordedSteps) else nullcontext()
    # However training ends: a posterior must not go on collecting factors nobody reads.
    with closing(steps), algorithms:
        run = TrainingRun(
            steps,
            beta if callable(beta) else lambda _: beta,
            scheduler(step.plain_optimizer) if scheduler else None,
            schedule_each_step,
            patience,
            epochs - average_epochs + 1 if average_epochs else None,
        )
        if isinstance(train_loader, DataLoader):
            train_loader = fabric.setup_dataloaders(train_loader)
        generators = checkpoints.loader_generators(train_loader)
        if checkpoint is None or not _resumed(run, checkpoint, generators):
            step.pretrain()
        steps_per_epoch = _length(train_loader)
        written = time.perf_counter()
        visible, log_dir = (progress, log_dir) if fabric.is_global_zero else (False, None)
        with make_display(visible, epochs, steps_per_epoch, log_dir) as show:
            while len(run.records) < epochs and not run.out_of_patience():
                started = time.perf_counter()
                means = run.epoch(train_loader, steps_per_epoch, show)
                metrics: dict[str, float] = {}
                if validation is not None:
                    metrics = evaluate(posterior, validation.loader, validation.num_samples)
                    # Draws differ between processes, and all must stop in the same epoch.
                    metrics = fabric.broadcast(metrics)
                run.finish_epoch(means, metrics, time.perf_counter() - started)
                show.epoch(run.records[-1])
                waited = time.perf_counter() - written
                if checkpoint is not None and waited >= checkpoint.seconds:
                    if fabric.is_global_zero:
                        checkpoints.write(Path(checkpoint.path), run.state(generators))
                    written = time.perf_counter()
                fabric.barrier()
            history = run.finish()
            if history.best_epoch is not None:
                nll = history[history.best_epoch - 1].validation["nll"]
                show.note(
                    f"stopped after epoch {len(history)}, restored epoch {history.best_epoch} "
                    f"(validation nll {nll:.4g})"
                )
    return history


def _resumed(run: TrainingRun, checkpoint: Checkpoint, generators: list[torch.Generator]) -> bool:
    """Whether the run goes on from a file."""
    path = Path(checkpoint.path)
    if not path.exists():
        return False
    if not checkpoint.resume:
        raise FileExistsError(
            f"{path} exists. Pass checkpoint=bbh.Checkpoint(path, resume=True) to go on from it, "
            "or another path."
        )
    run.restore(checkpoints.read(path), generators, path)
    return True


def _default_optimizer(
    posterior: Posterior[Any],
    fabric: Fabric,
    learning_rate: float,
    parameters: Iterable[nn.Parameter],
) -> Optimizer:
    """Adam, in one pass over a weight and its moments where that is possible.

    Not under a loss scaler, whose gradients a fused step would unscale by itself; and gradients
    that processes exchange must be whole.
    """
    if fabric.device.type not in ("cpu", "cuda") or scales_losses(fabric):
        return torch.optim.Adam(parameters, lr=learning_rate)
    if fabric.world_size > 1:
        return torch.optim.Adam(parameters, lr=learning_rate, fused=True)
    return make_adam(posterior.weights, parameters, lr=learning_rate)


def _length(loader: Iterable[Any]) -> int | None:
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # a DataLoader of a stream has the method and no answer
        return None
