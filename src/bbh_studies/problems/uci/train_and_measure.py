"""One run of the UCI study: train on a split, measure, record."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bbh
from bbh.predictive import RegressionPredictive
from bbh.training.display import Display
from bbh_studies.datasets.uci import UciData, load_uci
from bbh_studies.problems.uci.study import Uci
from bbh_studies.record import Record
from bbh_studies.run.leftovers import leave_behind
from bbh_studies.run.run import Run
from bbh_studies.run.train import train


class Steps:
    """``steps`` batches in shuffled order, which pass over the data as often as that takes.

    Args:
        inputs: All training inputs.
        targets: Their targets.
        batch_size: Examples in every batch; all of them, if there are fewer.
        steps: The number of batches.
    """

    def __init__(self, inputs: Tensor, targets: Tensor, batch_size: int, steps: int):
        self.inputs = inputs
        self.targets = targets
        self.batch_size = min(batch_size, len(inputs))
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        passes = -(-self.steps * self.batch_size // len(self.inputs))
        order = torch.cat([torch.randperm(len(self.inputs)) for _ in range(passes)])
        order = order[: self.steps * self.batch_size].to(self.inputs.device)
        for index in order.view(self.steps, self.batch_size):
            yield self.inputs[index], self.targets[index]


def train_and_measure(
    run: Run,
    *,
    folder: Path | None = None,
    device: str = "auto",
    resume: bool = False,
    progress: bool | Display = True,
) -> Record:
    """Trains and measures one posterior on the split that the run's seed names, and records it.

    With ``resume`` an interrupted run goes on from its checkpoint.
    """
    problem = run.config.problem
    assert isinstance(problem, Uci)
    validation = problem.split == "validation"
    batch_size = run.config.training.batch_size
    data = load_uci(problem.dataset, run.seed, folder, validation=validation)
    trained = train(
        run,
        data.train_inputs,
        data.train_targets,
        partial(Steps, batch_size=batch_size, steps=problem.count_steps(batch_size)),
        device=device,
        resume=resume,
        progress=progress,
    )
    leave_behind(run, trained.posterior, data.test_inputs)
    record = Record.of(
        run,
        metrics=measure(trained.posterior, data, problem.prediction_samples) | trained.effort,
        # Only the last epoch, since there are hundreds of runs.
        history=trained.history.to_dicts()[-1:],
        data={problem.dataset: data.fingerprint, "split": problem.split},
    )
    record.write(run.folder)
    return record


def measure(posterior: bbh.Posterior[Any], data: UciData, num_samples: int) -> dict[str, float]:
    """Metrics of the predictions for the test part, and of a prediction that knows no inputs."""
    predictive: RegressionPredictive = bbh.predict(posterior, data.test_inputs, num_samples)
    found = posterior.likelihood.metrics(predictive, data.test_targets)
    constant = posterior.likelihood.constant(data.train_targets, data.test_targets)
    assert constant is not None  # every regression likelihood has one
    return {
        "test_rmse": found["error"],
        "nll": found["nll"],
        "crps": found["crps"],
        "coverage_95": found["coverage_95"],
        "noise": float(predictive.aleatoric_std.mean()),
        "constant_rmse": constant["error"],
        "constant_nll": constant["nll"],
        "constant_crps": constant["crps"],
    }
