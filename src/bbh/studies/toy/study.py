"""The toy regression study, the paper's figure 1: six posteriors over functions, and the exact one.

Twenty noisy values of x³ on [−4, 4], a network of one hidden layer, and what each method believes
on [−6, 6]. All methods but those of the ``legacy`` preset approximate the same posterior: N(0, 1)
weights and a Gaussian likelihood of known noise. NUTS samples it, so how far a method is from it
can be measured.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

import bbh
from bbh.history import History
from bbh.objective import Schedule
from bbh.params import Params
from bbh.predictive import RegressionPredictive
from bbh.priors import Normal
from bbh.progress import Display
from bbh.studies.build import build_beta, build_optimizer, build_posterior, build_scheduler
from bbh.studies.config import Config
from bbh.studies.images.study import peak_memory_bytes
from bbh.studies.networks import toy_network
from bbh.studies.record import FILE_NAME, Record
from bbh.studies.run import Run
from bbh.studies.toy.data import ToyData, load_toy
from bbh.studies.toy.measures import distances, figure_arrays, measure
from bbh.studies.toy.reference import Reference, read_reference, sample_reference

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

    With ``resume`` a finished run is read back. Runs take seconds, so there are no checkpoints.
    """
    config, path = run.config, run.folder / FILE_NAME
    if resume and path.exists():
        return Record.read(path)
    data = load_toy(config.noise_scale)
    if config.method == "nuts":
        return _record_reference(run, data)
    torch.manual_seed(run.seed)
    fabric = Fabric(accelerator=device, devices=1)
    if fabric.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(fabric.device)
    likelihood = bbh.likelihoods.Gaussian(config.noise_scale)
    posterior = build_posterior(config, toy_network, likelihood)
    inputs, targets = (one.to(fabric.device) for one in (data.train_inputs, data.train_targets))
    history = bbh.fit(
        posterior,
        FullBatches(inputs, targets, config.steps_per_epoch),
        epochs=config.epochs,
        num_data=len(inputs),
        optimizer=build_optimizer(config, posterior),
        scheduler=build_scheduler(config),
        beta=toy_beta(config, len(inputs)),
        temperature=config.temperature,
        likelihood_samples=config.likelihood_samples or None,
        gradient_clip=config.gradient_clip or None,
        fabric=fabric,
        progress=progress,
    )
    seconds = sum(epoch.seconds for epoch in history)
    predictive = _predict(posterior, data, config.prediction_samples)
    reference = read_reference(config.noise_scale, config.prior_scale)
    found = measure(predictive, data) | {
        "seconds": seconds,
        "steps_per_second": history[-1].step / seconds,
        "parameters": float(sum(p.numel() for p in posterior.parameters())),
        "peak_memory_bytes": float(peak_memory_bytes(fabric.device)),
    }
    if reference is not None:
        exact = _predict_reference(reference, data, config.prior_scale)
        found |= distances(predictive, exact, data)
    return _write(run, data, predictive, found, _thinned(history))


def toy_beta(config: Config, num_data: int) -> float | Schedule:
    """Annealing of the complexity; the authors' is the un-normalised KL's, N times ours."""
    if not config.falling_beta:
        return build_beta(config)
    return lambda epoch: num_data * falling_beta(epoch * config.steps_per_epoch)


def falling_beta(step: float) -> float:
    """The authors' toy notebook: the KL is on for four steps and then off for good.

    >>> [falling_beta(step) for step in range(5)]
    [1.0, 1.0, 1.0, 0.5, 0.0]
    """
    return min(1.0, max(0.0, 10 / (step + 1) - 2))


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
        "peak_memory_bytes": float(peak_memory_bytes(torch.device("cpu"))),
    }
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
    record = Record(
        study=run.study,
        variant=run.variant,
        method=run.config.method,
        preset=run.preset,
        seed=run.seed,
        config=asdict(run.config),
        metrics=found,
        history=history,
        data={"toy": data.fingerprint},
    )
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
