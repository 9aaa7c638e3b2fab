"""A training run: its epochs, their records, the best state, and its checkpoint state."""

import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from bbh import checks
from bbh.annealing import Schedule
from bbh.processes import gathered, share
from bbh.training import checkpoints
from bbh.training.display import Display
from bbh.training.eager import EagerSteps
from bbh.training.history import EpochRecord, History
from bbh.training.random_numbers import Order, random_state, restore_random_state
from bbh.training.recorded import RecordedSteps
from bbh.training.settings import Settings
from bbh.training.verdicts import DivergedError


class TrainingRun:
    """The state of one call of ``fit``, which trains epoch by epoch.

    Args:
        steps: Takes the training steps.
        beta: Weight of the complexity as a function of the epoch.
        scheduler: Schedule of the learning rate.
        schedule_each_step: Advance the schedule every step instead of every epoch.
        patience: The number of epochs to wait for a better validation NLL; None keeps no best
            state.
        average_from: Number of the first epoch whose parameters enter the average that training
            ends with; None ends with the last parameters.
        settings: What a checkpoint must have been made with to be resumed.
    """

    def __init__(
        self,
        steps: EagerSteps | RecordedSteps,
        beta: Schedule,
        scheduler: LRScheduler | None,
        schedule_each_step: bool,
        patience: int | None,
        average_from: int | None,
        settings: Settings,
    ):
        if schedule_each_step and isinstance(scheduler, ReduceLROnPlateau):
            raise ValueError("ReduceLROnPlateau judges epochs: leave out schedule_each_step.")
        self.steps = steps
        self.step = steps.step
        self.posterior = steps.step.posterior
        self.beta = beta
        self.scheduler = scheduler
        self.schedule_each_step = schedule_each_step
        self.patience = patience
        self.average_from = average_from
        self.settings = settings
        self.average: list[Tensor] = []
        self.records: list[EpochRecord] = []
        self.best_epoch: int | None = None
        self.best_state: dict[str, Tensor] = {}
        self._check_rates()

    def epoch(
        self, loader: Iterable[Any], steps_per_epoch: int | None, show: Display
    ) -> dict[str, float]:
        """Trains for one pass over the data, and returns the means of the objective's terms."""
        self.posterior.train()
        start = self.step.count
        number = len(self.records)
        beta = self.beta(float(number))
        try:
            for batch in loader:
                done = self.step.count - start
                # If the loader has no length, beta changes only once per epoch.
                beta = self.beta(number + (done / steps_per_epoch if steps_per_epoch else 0.0))
                terms = self.steps.take(batch, beta)
                if self.schedule_each_step and self.scheduler is not None:
                    self.scheduler.step()
                    self._check_rates()
                if terms is not None:
                    show.step(number, done, terms)
            means = self.steps.means()
            self.step.check_parameters()
        except DivergedError as error:
            error.history = History(self.records)
            self.step.whole_again()  # a step that diverges does so in all processes
            raise
        if not means:
            raise ValueError(
                f"the training loader is empty in epoch {number + 1}. An iterator is read once: "
                "pass a list or a DataLoader. With drop_last=True it needs one whole batch."
            )
        with self.step.put_together():
            self.posterior.weights.end_epoch()
        # Running statistics are the same everywhere, but a network may write to other buffers too.
        share(self._fabric, self.posterior.statistics())
        return means | {"beta": beta}

    def finish_epoch(
        self,
        means: dict[str, float],
        metrics: dict[str, float],
        seconds: float,
    ) -> None:
        """Records the epoch, advances the schedule, and keeps the state if it is the best."""
        rate = float(self.step.optimizer.param_groups[0]["lr"])
        record = EpochRecord(
            epoch=len(self.records) + 1,
            step=self.step.count,
            learning_rate=rate,
            seconds=seconds,
            validation=metrics,
            **means,
        )
        self.records.append(record)
        if self.patience is not None:
            best = math.inf if self.best_epoch is None else self._validation_nll(self.best_epoch)
            if metrics["nll"] < best:
                self.best_epoch = record.epoch
                self.best_state = checkpoints.detached_copy(self.posterior.state_dict())
        if self.average_from is not None and record.epoch >= self.average_from:
            self._add_to_average(record.epoch - self.average_from)
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(metrics.get("nll", record.total))
        elif self.scheduler is not None and not self.schedule_each_step:
            self.scheduler.step()
            self._check_rates()

    def out_of_patience(self) -> bool:
        """Whether the best epoch is at least ``patience`` epochs ago."""
        if self.patience is None or not self.records:
            return False
        return self.records[-1].epoch - (self.best_epoch or 0) >= self.patience

    def finish(self) -> History:
        """Loads the best state or the average, if one was kept, and returns the history."""
        if self.best_epoch is not None:
            self.posterior.load_state_dict(self.best_state)
        if self.average_from is not None:
            with torch.no_grad():
                for parameter, mean in zip(self.posterior.parameters(), self.average, strict=True):
                    parameter.copy_(mean)
        self.step.whole_again()
        self.posterior.eval()
        return History(self.records, self.best_epoch, self.step.settings["temperature"])

    def state(self, order: Order) -> dict[str, Any]:
        """Everything that is needed to resume this run, for a checkpoint.

        All processes must call this: each has random numbers of its own, and shares the rest.
        """
        return {
            "settings": self.settings,
            "posterior": self.posterior.state_dict(),
            "optimizer": self.step.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler else None,
            "precision": self._precision().state_dict(),
            "step": self.step.count,
            "records": [asdict(record) for record in self.records],
            "best_epoch": self.best_epoch,
            "best_state": self.best_state,
            "average": self.average,
            "average_from": self.average_from,
            "random": gathered(self._fabric, random_state(order)),
        }

    def restore(self, state: dict[str, Any], order: Order, path: Path) -> None:
        """Brings this run to the state that ``state`` describes."""
        checkpoints.check_settings(path, state, self.settings)
        try:
            self._check_average(state, path)
            records = [EpochRecord(**record) for record in state["records"]]
            best_epoch, best_state = state["best_epoch"], dict(state["best_state"])
            if best_epoch is not None:
                # Used in the end only, which would be late for an error.
                best_epoch = records[best_epoch - 1].epoch
                _check_same_shapes(best_state.values(), self.posterior.state_dict().values())
            average = [mean.to(self.step.device) for mean in state["average"]]
            if average:
                _check_same_shapes(average, self.posterior.parameters())
            count = int(state["step"])
            self.posterior.load_state_dict(state["posterior"])
            self.step.optimizer.load_state_dict(state["optimizer"])
            if self.scheduler is not None:
                self.scheduler.load_state_dict(state["scheduler"])
            self._precision().load_state_dict(state["precision"])
            restore_random_state(state["random"][self._fabric.global_rank], order)
            self.step.count, self.records = count, records
            self.best_epoch, self.best_state, self.average = best_epoch, best_state, average
        except checkpoints.CheckpointError:
            raise
        # A file that was tampered with, checksum and all, may raise any error.
        except Exception as error:
            problem = checkpoints.first_line(error)
            raise checkpoints.CheckpointError(
                f"{path} belongs to another posterior, optimizer or loader: {problem}"
            ) from error

    def _check_average(self, state: dict[str, Any], path: Path) -> None:
        """Raises if an average that has begun in the checkpoint started at another epoch."""
        begun = self.average_from is not None and self.average_from <= len(state["records"])
        if begun and state["average_from"] != self.average_from:
            raise checkpoints.CheckpointError(
                f"{path} has {len(state['records'])} epochs, and not the mean of those from "
                f"{self.average_from} on. Train for more epochs, or leave out average_epochs."
            )

    @torch.no_grad()
    def _add_to_average(self, number: int) -> None:
        """Adds the current parameters to the mean of ``number`` earlier states."""
        parameters = list(self.posterior.parameters())
        if number == 0:
            self.average = [parameter.detach().clone() for parameter in parameters]
        for mean, parameter in zip(self.average, parameters, strict=True):
            mean.lerp_(parameter, 1 / (number + 1))

    def _check_rates(self) -> None:
        """Raises if a schedule made a learning rate negative or not finite."""
        for group in self.step.plain_optimizer.param_groups:
            checks.number("learning_rate", float(group.get("lr", 0.0)))

    @property
    def _fabric(self) -> Fabric:
        assert self.step.fabric is not None
        return self.step.fabric

    def _precision(self) -> Any:
        return self._fabric.strategy.precision

    def _validation_nll(self, epoch: int) -> float:
        return self.records[epoch - 1].validation["nll"]


def _check_same_shapes(first: Iterable[Tensor], second: Iterable[Tensor]) -> None:
    shapes = [[tensor.shape for tensor in tensors] for tensors in (first, second)]
    if shapes[0] != shapes[1]:
        raise ValueError("its kept weights have other shapes")
