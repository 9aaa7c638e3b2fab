"""One run of the toy study: train and measure, or look the reference up, and record."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import bbh
from bbh.predictive import RegressionPredictive
from bbh.samples import Params
from bbh.training.display import Display
from bbh.training.history import History
from bbh_studies.problems.toy.data import ToyData, load_toy
from bbh_studies.problems.toy.measures import distances, figure_arrays, measure
from bbh_studies.problems.toy.reference import Reference, read_reference, sample_reference
from bbh_studies.problems.toy.study import Toy
from bbh_studies.record import Record
from bbh_studies.run.leftovers import leave_behind
from bbh_studies.run.run import Run
from bbh_studies.run.train import peak_memory, train
from bbh_studies.settings.methods import Nuts

LONGEST_HISTORY = 200
# Predicting in pieces that fit a processor's cache is four times faster than gigabytes at once.
_MEMORY_LIMIT = 64 * 2**20


class FullBatches:
    """An epoch of ``steps`` batches, each of which holds all training data."""

    def __init__(self, inputs: Tensor, targets: Tensor, steps: int):
        self.inputs = inputs
        self.targets = targets
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(self.steps):
            yield self.inputs, self.targets


def train_and_measure(
    run: Run,
    *,
    device: str = "auto",
    resume: bool = False,
    progress: bool | Display = True,
) -> Record:
    """Trains and measures one posterior, or looks the reference up, and writes its record.

    With ``resume`` an interrupted run goes on from its checkpoint.
    """
    method, problem = run.config.method, _toy(run)
    data = load_toy(problem.noise_scale)
    if isinstance(method, Nuts):
        return _record_reference(run, method, data)
    trained = train(
        run,
        data.train_inputs,
        data.train_targets,
        partial(FullBatches, steps=problem.steps_per_epoch),
        device=device,
        resume=resume,
        progress=progress,
    )
    leave_behind(run, trained.posterior, data.grid)
    predictive = _predict(trained.posterior, data, problem.prediction_samples)
    reference = read_reference(problem, run.config.prior)
    found = measure(predictive, data) | trained.effort
    if reference is not None:
        exact = _predict_reference(reference, problem, data)
        found |= distances(predictive, exact, data)
    return _write(run, data, predictive, found, _thinned(trained.history))


def _toy(run: Run) -> Toy:
    problem = run.config.problem
    assert isinstance(problem, Toy)
    return problem


def _record_reference(run: Run, method: Nuts, data: ToyData) -> Record:
    problem, prior = _toy(run), run.config.prior
    reference = None if method.refresh_reference else read_reference(problem, prior)
    reference = reference or sample_reference(problem, prior)
    predictive = _predict_reference(reference, problem, data)
    about, settings = reference.about, reference.about["settings"]
    steps = settings["chains"] * (settings["warmup"] + settings["draws"] * settings["thin"])
    # The distance between two halves of the chains: that of samples of the same distribution.
    middle = len(predictive.locs) // 2
    halves = [_slice(predictive, slice(middle)), _slice(predictive, slice(middle, None))]
    found = measure(predictive, data) | distances(halves[0], halves[1], data)
    found |= {
        "r_hat": about["r_hat"],
        "effective_samples": about["effective_samples"],
        "divergences": float(about["divergences"]),
        "seconds": about["seconds"],
        "steps_per_second": steps / about["seconds"],
        "parameters": float(sum(one[0].numel() for one in reference.samples.values())),
    }
    found |= peak_memory(torch.device("cpu"))
    return _write(run, data, predictive, found, [])


def _predict_reference(reference: Reference, problem: Toy, data: ToyData) -> RegressionPredictive:
    # Any posterior over this network can evaluate given weights.
    posterior = bbh.methods.maximum_a_posteriori(problem.make_network(), problem.likelihood())
    return _predict(posterior, data, samples=reference.samples)


def _write(
    run: Run,
    data: ToyData,
    predictive: RegressionPredictive,
    found: dict[str, float],
    history: list[dict[str, Any]],
) -> Record:
    record = Record.of(run, metrics=found, history=history, data={"toy": data.fingerprint})
    record.write(run.folder, figure_arrays(predictive, data))
    return record


def _thinned(history: History) -> list[dict[str, Any]]:
    stride = -(-len(history) // LONGEST_HISTORY)
    return history.to_dicts()[(len(history) - 1) % stride :: stride]


def _predict(
    posterior: bbh.Posterior[Any],
    data: ToyData,
    num_samples: int = 1,
    samples: Params | None = None,
) -> RegressionPredictive:
    """Predicts grid and fresh data in one go, so that both see the same functions."""
    everywhere = torch.cat([data.grid, data.test_inputs, data.outer_inputs])
    return bbh.predict(
        posterior, everywhere, num_samples, samples=samples, memory_limit=_MEMORY_LIMIT
    )


def _slice(predictive: RegressionPredictive, draws: slice) -> RegressionPredictive:
    locs, scales = predictive.locs[draws], predictive.scales[draws]
    return RegressionPredictive(locs.mean(0), len(locs), locs, scales)
