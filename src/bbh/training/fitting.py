"""``fit``, the training loop for all methods, built on Lightning Fabric."""

import time
from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from bbh.annealing import Schedule
from bbh.batches import length_of, num_data_of
from bbh.files import WriteError, remove_leftovers
from bbh.posterior import Posterior
from bbh.prediction import evaluate
from bbh.processes import gathered
from bbh.training import checkpoints
from bbh.training.arguments import as_schedule, check_arguments
from bbh.training.comparing import Comparing
from bbh.training.defaults import cooling, default_beta, default_optimizer
from bbh.training.display import Display, make_display
from bbh.training.history import History
from bbh.training.interruption import waiting_signals
from bbh.training.options import Checkpoint, Validation
from bbh.training.random_numbers import (
    Order,
    PassCounter,
    draw_differently,
    loader_generators,
    same_order,
)
from bbh.training.recorded import RecordedSteps, fastest_convolutions, make_steps
from bbh.training.reference import EXAMPLES, ReferenceKeeper
from bbh.training.run import TrainingRun
from bbh.training.settings import run_settings
from bbh.training.sharding import check_strategy
from bbh.training.step import TrainingStep
from bbh.training.targets import prepare_targets

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
MakeScheduler = Callable[[Optimizer], LRScheduler]


def fit(
    posterior: Posterior[Any],
    train_loader: Iterable[Any],
    *,
    epochs: int,
    num_data: int | None = None,
    learning_rate: float | None = None,
    optimizer: MakeOptimizer | None = None,
    scheduler: MakeScheduler | None = None,
    schedule_each_step: bool = False,
    beta: float | Schedule | None = None,
    temperature: float | None = None,
    num_samples: int | None = None,
    likelihood_samples: int | None = None,
    gradient_clip: float | None = None,
    validation: Validation | Iterable[Any] | None = None,
    average_epochs: int = 0,
    checkpoint: Checkpoint | str | Path | None = None,
    fabric: Fabric | None = None,
    cuda_graph: bool = True,
    batch_norm_examples: int = EXAMPLES,
    progress: bool | Display = True,
    log_dir: str | Path | None = None,
    compare: bool = True,
    num_threads: int | None = None,
) -> History:
    """Trains a posterior, whatever its method, and returns a record of every epoch.

    Args:
        posterior: The posterior to train, in place. It is moved to the device that Fabric chooses.
        train_loader: Yields ``(inputs, targets)``, ``(inputs, targets, weights)`` or dictionaries.
        epochs: The total number of passes over the loader, including those before a checkpoint.
        num_data: N, the number of training examples; None takes the length of the loader's dataset.
            It is never guessed from batches.
        learning_rate: Learning rate of Adam, unless ``optimizer`` is given; None takes the
            method's own (0.003 for Bayes by Hypernet, 0.001 for all others). Parameters of the
            likelihood, such as learned noise, have ten times that rate: they are single numbers
            that may have far to go.
        optimizer: A function that makes an optimizer from the parameters, e.g.
            ``lambda p: torch.optim.SGD(p, lr=0.1)``.
        scheduler: A function that makes a learning-rate schedule from the optimizer. If neither
            ``scheduler`` nor ``optimizer`` is given, the method decides: for Bayes by Hypernet the
            rate falls linearly in the last third of the epochs, for all others it is constant.
        schedule_each_step: Advance the schedule every step instead of every epoch.
        beta: Weight of the complexity: a number, or annealing by ``Linear``,
            ``Cosine`` or any function of the (fractional) epoch. None takes the method's own: for
            Bayes by Hypernet it rises from 0 to 1 over the first 30 % of the epochs, for all others
            it is 1.
        temperature: Constant factor on the complexity: with 1 the objective is the evidence lower
            bound. None takes the method's own. That of Bayes by Hypernet is less for wide networks,
            75/units, unless there are as many examples as weights; a line says so. That of all
            others is 1.
        num_samples: The number of weight draws per step; None takes the method's own number.
        likelihood_samples: How many of these draws enter the likelihood; None takes the method's
            own number: five of ten for Bayes by Hypernet, all for all others.
        gradient_clip: Largest global norm of the gradient; None for no limit.
        validation: Batches to evaluate on after every epoch, or a ``bbh.Validation`` that also sets
            the number of draws and the patience for early stopping.
        average_epochs: If positive, training ends with the mean of the parameters over this many
            last epochs (stochastic weight averaging, Izmailov et al. 2018) instead of the last
            parameters. With batch norm, MAP and ensembles then need ``refresh_batch_norm``.
        checkpoint: File to write after every epoch, or a ``bbh.Checkpoint`` that also says whether
            to continue from an existing file.
        fabric: Lightning Fabric for devices, precision and distribution; None takes one device.
            With several processes, each draws weights of its own, and the history has means over
            all of them.
        cuda_graph: On a CUDA device, record a training step once as a CUDA graph and replay it.
            Decisions that the network makes in Python (to skip layers at random, say) are then made
            only once, during recording: pass False for such networks.
        batch_norm_examples: If weight draws need batch-norm statistics of their own, the posterior
            keeps up to this many inputs of the first epoch (at most 64 MiB) to compute them in
            evaluation, see ``posterior.keep_reference``. They are part of what ``bbh.save``
            writes. 0 keeps none and leaves those that the posterior has.
        progress: Whether to show a progress bar, or an object that shows steps and epochs instead.
        log_dir: Folder for TensorBoard logs; None writes none.
        compare: Whether to compare the trained posterior with a constant prediction and with the
            network it started from, on about 1,000 validation examples (training examples if there
            is no validation). The result is ``history.comparison``; a warning is logged if the
            posterior lost.
        num_threads: Threads of a training step on a CPU. None takes one for tiny networks and
            batches, which several threads make slower, and torch's own number for all others.

    Raises:
        DivergedError: A term of the objective or the gradient is not finite.
    """
    if validation is not None and not isinstance(validation, Validation):
        validation = Validation(validation)
    check_arguments(
        posterior,
        train_loader,
        None if validation is None else validation.loader,
        epochs=epochs,
        average_epochs=average_epochs,
        batch_norm_examples=batch_norm_examples,
        learning_rate=learning_rate,
        optimizer=optimizer,
        scheduler=scheduler,
    )
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    patience = None if validation is None else validation.patience
    if average_epochs > epochs:
        raise ValueError(f"average_epochs={average_epochs}: there are {epochs} epochs.")
    if average_epochs and patience is not None:
        raise ValueError("patience keeps the best epoch and average_epochs a mean: choose one.")
    if schedule_each_step and scheduler is None:
        raise ValueError("schedule_each_step=True needs a scheduler.")
    defaults = posterior.weights.training_defaults
    schedule = as_schedule(default_beta(defaults, epochs) if beta is None else beta)
    num_data = num_data if num_data is not None else num_data_of(train_loader)
    fabric = fabric or Fabric(accelerator="auto", devices=1)
    check_strategy(fabric.strategy, checkpoint=checkpoint is not None)
    # Before the optimizer is made, since the fastest optimizer depends on the device.
    posterior.to(fabric.device)
    make = optimizer or partial(
        default_optimizer, posterior, fabric, learning_rate or defaults.learning_rate
    )
    given_loader = train_loader
    if isinstance(train_loader, DataLoader):
        train_loader = fabric.setup_dataloaders(train_loader)
    # Of this process: with several, each has a share of the batches.
    steps_per_epoch = length_of(train_loader)
    if scheduler is None and optimizer is None and defaults.cooling:
        schedule_each_step = steps_per_epoch is not None
        scheduler = partial(cooling, epochs * (steps_per_epoch or 1), defaults.cooling)
    step = TrainingStep(
        posterior,
        make,
        num_data=num_data,
        temperature=temperature,
        num_samples=num_samples,
        likelihood_samples=likelihood_samples,
        gradient_clip=gradient_clip,
        fabric=fabric,
        num_threads=num_threads,
    )
    steps = make_steps(step, cuda_graph=cuda_graph)
    algorithms = fastest_convolutions() if isinstance(steps, RecordedSteps) else nullcontext()
    # Closed even if training fails: otherwise every later backward pass through the posterior
    # would still collect gradient factors, which nothing uses.
    with closing(steps), algorithms, same_order(given_loader, fabric):
        made_scheduler = scheduler(step.plain_optimizer) if scheduler else None
        # Only for a checkpoint: checksums of tensors take their time.
        settings = checkpoint and run_settings(
            step,
            loader=given_loader,
            beta=beta,
            scheduler=made_scheduler,
            schedule_each_step=schedule_each_step,
            own=checkpoint.settings,
        )
        run = TrainingRun(
            steps,
            schedule,
            made_scheduler,
            schedule_each_step,
            patience,
            epochs - average_epochs + 1 if average_epochs else None,
            settings or {},
        )
        order = [*loader_generators(given_loader), PassCounter(train_loader)]
        if checkpoint is not None:
            checkpoints.warn_about_workers(train_loader)
        resumed = checkpoint is not None and _resumed(run, checkpoint, order, fabric)
        if not resumed:
            draw_differently(fabric)
            prepare_targets(posterior.likelihood, train_loader, order, fabric.broadcast)
            step.pretrain()
        keeper = ReferenceKeeper(
            posterior, batch_norm_examples, done=resumed and bool(posterior.reference)
        )
        written = time.perf_counter()
        visible, log_dir = (progress, log_dir) if fabric.is_global_zero else (False, None)
        enabled = compare and fabric.is_global_zero
        comparing = Comparing(posterior, validated=validation is not None, enabled=enabled)
        with make_display(visible, epochs, steps_per_epoch, log_dir) as show:
            if temperature is None and step.settings["temperature"] < 1:
                show.note(_about_temperature(step))
            with waiting_signals(checkpoint is not None) as interruption:
                while len(run.records) < epochs and not run.out_of_patience():
                    started = time.perf_counter()
                    watched = keeper.watch(comparing.training(train_loader))
                    means = run.epoch(watched, steps_per_epoch, show)
                    keeper.end_epoch(fabric.broadcast if fabric.world_size > 1 else None)
                    metrics: dict[str, float] = {}
                    if validation is not None:
                        batches = comparing.validation(validation.loader)
                        with step.put_together():
                            metrics = evaluate(
                                posterior, batches, validation.num_samples, fabric=fabric
                            )
                    # Draws and clocks differ between processes, but all must stop together.
                    seconds = time.perf_counter() - started
                    metrics, seconds = fabric.broadcast((metrics, seconds))
                    run.finish_epoch(means, metrics, seconds)
                    show.epoch(run.records[-1])
                    if checkpoint is None:
                        continue
                    due = fabric.broadcast(time.perf_counter() - written >= checkpoint.seconds)
                    if due or interruption.agreed(fabric):
                        _write(run, checkpoint, order, fabric)
                        written = time.perf_counter()
                        if interruption.agreed(fabric):
                            interruption.deliver()
            history = run.finish()
            if history.best_epoch is not None:
                nll = history[history.best_epoch - 1].validation["nll"]
                show.note(
                    f"stopped after epoch {len(history)}, restored epoch {history.best_epoch} "
                    f"(validation nll {nll:.4g})"
                )
            history.comparison = fabric.broadcast(comparing.result())
            if history.comparison is not None:
                show.note(str(history.comparison))
    return history


def _about_temperature(step: TrainingStep) -> str:
    return (
        f"temperature {step.settings['temperature']:g}: the network is wide for "
        f"{step.settings['num_data']:,} examples, so the distance to the prior weighs less; "
        "temperature=1 gives it its full weight"
    )


def _resumed(run: TrainingRun, checkpoint: Checkpoint, order: Order, fabric: Fabric) -> bool:
    """Restores the run from the checkpoint if its file exists, and returns whether it did."""
    path = Path(checkpoint.path)
    remove_leftovers(path.parent, path.name)
    exists = gathered(fabric, path.exists())
    if not any(exists):
        return False
    if not checkpoint.resume:
        raise FileExistsError(
            f"{path} exists. Pass checkpoint=bbh.Checkpoint(path, resume=True) to go on from it, "
            "or another path."
        )
    if not all(exists):
        raise checkpoints.CheckpointError(
            f"{path} exists for {sum(exists)} of {len(exists)} processes only. Copy it to a folder "
            "that all processes can read."
        )
    run.restore(checkpoints.read(path), order, path)
    return True


def _write(run: TrainingRun, checkpoint: Checkpoint, order: Order, fabric: Fabric) -> None:
    """Writes the checkpoint in the first process; if that fails, all processes raise."""
    state = run.state(order)
    problem = None
    if fabric.is_global_zero:
        try:
            checkpoints.write(Path(checkpoint.path), state)
        except WriteError as error:
            problem = error
    problem = fabric.broadcast(problem)
    if problem is not None:
        raise problem
