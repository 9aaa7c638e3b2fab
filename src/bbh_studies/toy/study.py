"""The toy regression study, the paper's figure 1: six posteriors over functions, and the exact one.

Twenty noisy values of x³ on [−4, 4], a network of one hidden layer, and what each method believes
on [−6, 6]. All methods but those of the ``legacy`` preset approximate the same posterior: N(0, 1)
weights and a Gaussian likelihood of known noise. NUTS samples it, so how far a method is from it
can be measured.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import bbh
from bbh.predictive import RegressionPredictive
from bbh.priors import Normal
from bbh.samples import Params
from bbh.training.display import Display
from bbh.training.history import History
from bbh_studies.inspection import leave_behind
from bbh_studies.networks import toy_network
from bbh_studies.record import Record
from bbh_studies.run import Run
from bbh_studies.toy.data import ToyData, load_toy
from bbh_studies.toy.measures import distances, figure_arrays, measure
from bbh_studies.toy.reference import Reference, read_reference, sample_reference
from bbh_studies.training import peak_memory, train

_LONGEST_HISTORY = 200
# Pieces that fit a processor's cache are four times faster than gigabytes at once.
_MEMORY_LIMIT = 64 * 2**20


class FullBatches:
    """All training data, several times: one optimiser step each, together one epoch."""

    def __init__(self, inputs: Tensor, targets: Tensor, steps: int):
        self.inputs = inputs
        self.targets = targets
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(self.steps):
            yield self.inputs, self.targets


def run_once(
    run: Run,
    *,
    device: str = "auto",
    resume: bool = False,
    progress: bool | Display = True,
) -> Record:
    """Trains and measures one posterior, or looks the reference up, and writes its record.

    With ``resume`` an interrupted run goes on from its checkpoint.
    """
    config = run.config
    data = load_toy(config.noise_scale)
    if config.method == "nuts":
        return _record_reference(run, data)
    trained = train(
        run,
        data.train_inputs,
        data.train_targets,
        partial(FullBatches, steps=config.steps_per_epoch),
        device=device,
        resume=resume,
        progress=progress,
    )
    leave_behind(run, trained.posterior, data.grid)
    predictive = _predict(trained.posterior, data, config.prediction_samples)
    reference = read_reference(config.noise_scale, config.prior_scale)
    found = measure(predictive, data) | trained.effort
    if reference is not None:
        exact = _predict_reference(reference, data, config.prior_scale)
        found |= distances(predictive, exact, data)
    return _write(run, data, predictive, found, _thinned(trained.history))


def _record_reference(run: Run, data: ToyData) -> Record:
    config = run.config
    reference = None
    if not config.refresh_reference:
        reference = read_reference(config.noise_scale, config.prior_scale)
    reference = reference or sample_reference(data, config.prior_scale)
    predictive = _predict_reference(reference, data, config.prior_scale)
    about, settings = reference.about, reference.about["settings"]
    steps = settings["chains"] * (settings["warmup"] + settings["draws"] * settings["thin"])
    # One half of the chains against the other: what is left of the distance between equals.
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


def _predict_reference(
    reference: Reference, data: ToyData, prior_scale: float
) -> RegressionPredictive:
    likelihood = bbh.likelihoods.Gaussian(data.noise_scale)
    # Any posterior of the network evaluates weights that it is given.
    posterior = bbh.methods.maximum_a_posteriori(toy_network(), likelihood, Normal(prior_scale))
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
    stride = -(-len(history) // _LONGEST_HISTORY)
    return history.to_dicts()[(len(history) - 1) % stride :: stride]


def _predict(
    posterior: bbh.Posterior[Any],
    data: ToyData,
    num_samples: int = 1,
    samples: Params | None = None,
) -> RegressionPredictive:
    """Of grid and fresh data in one go, so that both see the same functions."""
    everywhere = torch.cat([data.grid, data.test_inputs, data.outer_inputs])
    return bbh.predict(
        posterior, everywhere, num_samples, samples=samples, memory_limit=_MEMORY_LIMIT
    )


def _slice(predictive: RegressionPredictive, draws: slice) -> RegressionPredictive:
    locs, scales = predictive.locs[draws], predictive.scales[draws]
    return RegressionPredictive(locs.mean(0), len(locs), locs, scales)
