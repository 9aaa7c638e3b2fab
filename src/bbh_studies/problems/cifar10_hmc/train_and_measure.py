"""One run of the study: train (or take HMC's predictions), measure, record."""

from functools import partial
from typing import Any

from torch import Tensor

import bbh
from bbh import metrics
from bbh.predictive import ClassPredictive
from bbh.training.display import Display
from bbh_studies.datasets.cifar10_hmc import Cifar10HmcData
from bbh_studies.problems.cifar10_hmc.study import Cifar10Hmc
from bbh_studies.problems.images.measures import prediction_arrays
from bbh_studies.problems.images.train_and_measure import ShuffledBatches
from bbh_studies.record import Record
from bbh_studies.run.leftovers import leave_behind
from bbh_studies.run.run import Run
from bbh_studies.run.train import train


def train_and_measure(
    run: Run,
    *,
    data: Cifar10HmcData,
    device: str = "auto",
    resume: bool = False,
    progress: bool | Display = True,
) -> Record:
    """Trains and measures one posterior, or measures HMC's predictions, and writes its record.

    With ``resume`` an interrupted run goes on from its checkpoint.
    """
    problem = run.config.problem
    assert isinstance(problem, Cifar10Hmc)
    data = problem.on_split(data)
    if not run.config.method.is_trained:
        assert data.hmc is not None  # ``knows_reference``: no such run is planned without it
        return _record(run, data, data.hmc, {}, [])
    trained = train(
        run,
        data.train_images,
        data.train_labels,
        partial(ShuffledBatches, batch_size=run.config.training.batch_size),
        device=device,
        resume=resume,
        progress=progress,
    )
    leave_behind(run, trained.posterior, data.test_images)
    predictive: ClassPredictive = bbh.predict(
        trained.posterior, data.test_images, problem.prediction_samples
    )
    return _record(run, data, predictive.mean, trained.effort, trained.history.to_dicts())


def measure(probs: Tensor, labels: Tensor, hmc: Tensor | None) -> dict[str, float]:
    """Metrics of class probabilities, and how far they are from HMC's where these are known."""
    wrong = probs.argmax(1) != labels
    found = {
        "error": metrics.error(probs, labels),
        "nll": metrics.nll(probs, labels),
        "brier": metrics.brier(probs, labels),
        "ece": metrics.expected_calibration_error(probs, labels),
        "risk_coverage_area": metrics.risk_coverage_area(metrics.entropy(probs), wrong),
    }
    if hmc is not None:
        found["hmc_agreement"] = metrics.agreement(probs, hmc)
        found["hmc_total_variation"] = metrics.total_variation(probs, hmc)
    return found


def _record(
    run: Run,
    data: Cifar10HmcData,
    probs: Tensor,
    effort: dict[str, float],
    history: list[dict[str, Any]],
) -> Record:
    record = Record.of(
        run,
        metrics=measure(probs, data.test_labels, data.hmc) | effort,
        history=history,
        data=dict(data.facts),
    )
    record.write(run.folder, prediction_arrays(probs, data.test_images, data.test_labels))
    return record
