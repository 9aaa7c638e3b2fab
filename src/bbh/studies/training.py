"""Training, the same in every study: from a run to a posterior and what it took."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from lightning_fabric import Fabric
from torch import Tensor

import bbh
from bbh.history import History
from bbh.progress import Display
from bbh.studies.build import (
    build_beta,
    build_optimizer,
    build_posterior,
    build_scheduler,
)
from bbh.studies.run import Run
from bbh.studies.study import study_of

# At most this often, and so rarely that writing takes a twentieth of the time: a layer-wise
# generator's state is 2.7 GB.
_CHECKPOINT_SECONDS = 60.0
_BYTES_PER_SECOND = 200e6


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
        effort: Time, speed, size and memory, as records name them.
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
    fabric = Fabric(accelerator=device, devices=1)
    batches = make_batches(inputs.to(fabric.device), targets.to(fabric.device))
    if fabric.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(fabric.device)
    study = study_of(run.study)
    make_network = partial(study.make_network, config)
    posterior = build_posterior(config, make_network, study.likelihood(config))
    history = bbh.fit(
        posterior,
        batches,
        epochs=config.epochs,
        num_data=len(inputs),
        optimizer=build_optimizer(config, posterior),
        scheduler=build_scheduler(config),
        beta=build_beta(config, len(inputs), len(batches)),
        temperature=config.temperature,
        likelihood_samples=config.likelihood_samples or None,
        gradient_clip=config.gradient_clip or None,
        average_epochs=config.average_epochs,
        checkpoint=run.checkpoint,
        checkpoint_seconds=_checkpoint_seconds(posterior),
        resume=resume,
        fabric=fabric,
        progress=progress,
    )
    seconds = sum(epoch.seconds for epoch in history)
    effort = {
        "seconds": seconds,
        "steps_per_second": history[-1].step / seconds,
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


def _checkpoint_seconds(posterior: bbh.Posterior[Any]) -> float:
    state = 3 * sum(p.numel() * p.element_size() for p in posterior.parameters())
    return max(_CHECKPOINT_SECONDS, 20 * state / _BYTES_PER_SECOND)
