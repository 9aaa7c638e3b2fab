"""Training, the same in every study: from a run to a posterior and what it took."""

import copy
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
from bbh.training import Display, History
from bbh_studies import warm_start
from bbh_studies.build import build_beta, build_optimizer, build_posterior, build_scheduler
from bbh_studies.config import Config
from bbh_studies.run import Run
from bbh_studies.study import study_of

# Checkpoints are written at most this often, and so rarely that writing takes a twentieth of the
# time: a layer-wise generator's state is 2.7 GB.
_CHECKPOINT_SECONDS = 60.0
_BYTES_PER_SECOND = 200e6


@runtime_checkable
class Batches(Protocol):
    """One pass over training data that lie on the device."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...


@dataclass(frozen=True)
class Trained:
    """What came of training.

    Attributes:
        posterior: Fitted.
        history: One entry per epoch.
        effort: Time (that of a warm start included), speed, size and memory, as records name them.
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
        make_batches: From inputs and targets on the device.
        device: auto, cpu or cuda.
        resume: Go on from the checkpoint, if there is one.
        progress: As in ``bbh.fit``.
    """
    config = run.config
    torch.manual_seed(run.seed)
    precision = cast(Any, config.precision)  # a word that was checked
    fabric = Fabric(accelerator=device, devices=1, precision=precision)
    batches = make_batches(inputs.to(fabric.device), targets.to(fabric.device))
    if fabric.device.type == "cuda":
        gc.collect()  # what an earlier run left on the card is none of this one's
        torch.cuda.reset_peak_memory_stats(fabric.device)
    study = study_of(run.study)
    make_network: Callable[[], nn.Module] = partial(study.make_network, config)
    likelihood = study.likelihood(config)
    fit = partial(_fit, batches=batches, num_data=len(inputs), fabric=fabric, resume=resume)
    seconds_before = 0.0
    if config.starts_warm:
        first = warm_start.first_config(config)
        point = build_posterior(first, make_network, likelihood)
        # As often as is worth its time: its end is where an interrupted run goes on.
        every = _worth_writing(point)
        seconds_before = _seconds(
            fit(first, point, checkpoint=run.warm_start, every=every, progress=progress)
        )
        trained = warm_start.with_weights_of(point, make_network())
        make_network = partial(copy.deepcopy, trained)
        if isinstance(progress, Display):
            progress = warm_start.Later(progress, first.epochs)
    posterior = build_posterior(config, make_network, likelihood)
    every = max(_CHECKPOINT_SECONDS, _worth_writing(posterior))
    history = fit(config, posterior, checkpoint=run.checkpoint, every=every, progress=progress)
    effort = {
        "seconds": seconds_before + _seconds(history),
        "steps_per_second": history[-1].step / _seconds(history),
        "parameters": float(sum(p.numel() for p in posterior.parameters())),
    }
    return Trained(posterior, history, effort | peak_memory(fabric.device))


def peak_memory(device: torch.device) -> dict[str, float]:
    """Bytes, of the card since training began, or of the process; nothing where none are told."""
    if device.type == "cuda":
        return {"peak_memory_bytes": float(torch.cuda.max_memory_allocated(device))}
    if sys.platform == "win32":
        return {}
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # In kilobytes, but on a Mac in bytes.
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
    progress: bool | Display,
) -> History:
    return bbh.fit(
        posterior,
        batches,
        epochs=config.epochs,
        num_data=num_data,
        optimizer=build_optimizer(config, posterior),
        scheduler=build_scheduler(config),
        beta=build_beta(config, num_data, len(batches)),
        temperature=config.temperature,
        likelihood_samples=config.likelihood_samples or None,
        gradient_clip=config.gradient_clip or None,
        average_epochs=config.average_epochs,
        checkpoint=bbh.Checkpoint(checkpoint, resume=resume, seconds=every),
        fabric=fabric,
        progress=progress,
    )


def _seconds(history: History) -> float:
    return sum(epoch.seconds for epoch in history)


def _worth_writing(posterior: bbh.Posterior[Any]) -> float:
    """Seconds of training of which writing its state takes a twentieth."""
    state = 3 * sum(p.numel() * p.element_size() for p in posterior.parameters())
    return 20 * state / _BYTES_PER_SECOND
