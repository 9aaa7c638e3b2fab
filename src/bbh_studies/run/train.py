"""Training, the same in every study: a run becomes a posterior, with its time and memory."""

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

import bbh
from bbh.likelihoods import Regression
from bbh.training import Display, History
from bbh_studies.datasets.sources import fingerprint
from bbh_studies.run import warm_start
from bbh_studies.run.run import Run
from bbh_studies.settings.config import Config

# Least seconds between two checkpoints. For large states they are further apart, so that writing
# takes a twentieth of the time: a layer-wise generator's state is 2.7 GB.
CHECKPOINT_SECONDS = 60.0
_BYTES_PER_SECOND = 200e6


@runtime_checkable
class Batches(Protocol):
    """One pass over training data that lie on the device."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...


@dataclass(frozen=True)
class Trained:
    """A fitted posterior, and what its training took.

    Attributes:
        posterior: The fitted posterior.
        history: One entry per epoch.
        effort: Time (a warm start included), speed, size and memory, as records name them.
    """

    posterior: bbh.Posterior[Any]
    history: History
    effort: dict[str, float]


def train(
    run: Run,
    inputs: Tensor,
    targets: Tensor,
    make_batches: Callable[[Tensor, Tensor], Batches],
    *,
    device: str,
    resume: bool,
    progress: bool | Display,
) -> Trained:
    """Fits the posterior a run describes.

    Args:
        run: What to train; an interrupted one leaves a checkpoint.
        inputs: All training inputs.
        targets: All training targets.
        make_batches: Makes batches from inputs and targets that are on the device.
        device: auto, cpu or cuda.
        resume: Go on from the checkpoint, if there is one.
        progress: As in ``bbh.fit``.
    """
    config = run.config
    torch.manual_seed(run.seed)
    precision = cast(Any, config.training.precision)  # ``check`` has made sure that Fabric knows it
    fabric = Fabric(accelerator=device, devices=1, precision=precision)
    batches = make_batches(inputs.to(fabric.device), targets.to(fabric.device))
    if fabric.device.type == "cuda":
        gc.collect()  # memory that an earlier run left on the card must not count for this one
        torch.cuda.reset_peak_memory_stats(fabric.device)
    make_network: Callable[[], nn.Module] = config.make_network
    origin = {"seed": run.seed, "data": fingerprint(inputs.cpu(), targets.cpu())}
    fit = partial(
        _fit, batches=batches, num_data=len(inputs), fabric=fabric, resume=resume, origin=origin
    )
    seconds_before = 0.0
    if config.method.warm_epochs:
        first = warm_start.first_config(config)
        point = warm_start.build_points(first, config.method.num_starts, make_network)
        # Without the lower limit in seconds: the last checkpoint of the warm start is where a run
        # that is interrupted later goes on.
        every = _worth_writing(point)
        seconds_before = _seconds(
            fit(first, point, checkpoint=run.warm_start, every=every, progress=progress)
        )
        make_network = warm_start.in_turn(warm_start.trained_networks(point, make_network))
        if isinstance(progress, Display):
            progress = warm_start.Later(progress, first.training.epochs)
    posterior = config.build_posterior(make_network)
    likelihood = posterior.likelihood
    if isinstance(likelihood, Regression) and likelihood.waits_for_targets:
        # All of them are at hand, while an epoch may hold a part of them only.
        likelihood.fit_targets(targets)
    every = max(CHECKPOINT_SECONDS, _worth_writing(posterior))
    history = fit(config, posterior, checkpoint=run.checkpoint, every=every, progress=progress)
    effort = {
        "seconds": seconds_before + _seconds(history),
        "steps_per_second": history[-1].step / _seconds(history),
        "parameters": float(sum(p.numel() for p in posterior.parameters())),
    }
    return Trained(posterior, history, effort | peak_memory(fabric.device))


def peak_memory(device: torch.device) -> dict[str, float]:
    """Peak memory, on the card since training began or of the process; empty if unknown."""
    if device.type == "cuda":
        return {"peak_memory_bytes": float(torch.cuda.max_memory_allocated(device))}
    if sys.platform == "win32":
        return {}
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # It is in kilobytes, but on a Mac in bytes.
    return {"peak_memory_bytes": float(peak if sys.platform == "darwin" else 1024 * peak)}


def _fit(
    config: Config,
    posterior: bbh.Posterior[Any],
    *,
    batches: Batches,
    num_data: int,
    fabric: Fabric,
    checkpoint: Path,
    every: float,
    resume: bool,
    origin: dict[str, Any],
    progress: bool | Display,
) -> History:
    training = config.training
    return bbh.fit(
        posterior,
        batches,
        epochs=training.epochs,
        num_data=num_data,
        optimizer=training.make_optimizer(posterior),
        scheduler=training.make_scheduler(),
        beta=training.make_beta(num_data, len(batches)),
        temperature=training.temperature,
        likelihood_samples=config.method.likelihood_draws,
        gradient_clip=training.gradient_clip or None,
        average_epochs=training.average_epochs,
        checkpoint=bbh.Checkpoint(
            checkpoint, resume=resume, seconds=every, settings=config.trained_with | origin
        ),
        fabric=fabric,
        progress=progress,
        compare=False,
    )


def _seconds(history: History) -> float:
    return sum(epoch.seconds for epoch in history)


def _worth_writing(posterior: bbh.Posterior[Any]) -> float:
    """Seconds between checkpoints for which writing them takes a twentieth of the time."""
    state = 3 * sum(p.numel() * p.element_size() for p in posterior.parameters())
    return 20 * state / _BYTES_PER_SECOND
