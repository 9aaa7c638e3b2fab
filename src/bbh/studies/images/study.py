"""One run of an image-classification study: train, measure, record."""

import resource
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

import bbh
from bbh.predictive import ClassPredictive
from bbh.progress import Display
from bbh.studies.build import build_beta, build_optimizer, build_posterior, build_scheduler
from bbh.studies.datasets import ImageData
from bbh.studies.images.between_classes import evaluation_arrays
from bbh.studies.images.measures import figure_arrays, measure
from bbh.studies.record import FILE_NAME, Record
from bbh.studies.run import Run

# At most this often, and so rarely that writing takes a twentieth of the time: a layer-wise
# generator's state is 2.7 GB.
_CHECKPOINT_SECONDS = 60.0
_BYTES_PER_SECOND = 200e6


@dataclass(frozen=True)
class Study:
    """Data, and one network for all methods, so that only the posterior differs."""

    name: str
    data: ImageData
    make_network: Callable[[], nn.Module]


class DeviceBatches:
    """Shuffled batches of tensors that stay where they are: no worker, no copy to the device."""

    def __init__(self, images: Tensor, labels: Tensor, batch_size: int):
        self.images = images
        self.labels = labels
        self.batch_size = batch_size

    def __len__(self) -> int:
        return len(self.images) // self.batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.images)).to(self.images.device)
        # A short last batch is left out; it is another one in every epoch.
        for index in order[: len(self) * self.batch_size].view(len(self), -1):
            yield self.images[index], self.labels[index]


def run_once(
    study: Study,
    run: Run,
    *,
    device: str = "auto",
    resume: bool = False,
    progress: bool | Display = True,
) -> Record:
    """Trains and measures one posterior, and writes its record.

    An interrupted run goes on from its last epoch with ``resume``; a finished one is read back.
    """
    config, path = run.config, run.folder / FILE_NAME
    if resume and path.exists():
        return Record.read(path)
    torch.manual_seed(run.seed)
    fabric = Fabric(accelerator=device, devices=1)
    data = study.data if config.split == "test" else study.data.for_choosing()
    images, labels = (one.to(fabric.device) for one in (data.train_images, data.train_labels))
    if fabric.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(fabric.device)
    posterior = build_posterior(config, study.make_network, bbh.likelihoods.Categorical())
    history = bbh.fit(
        posterior,
        DeviceBatches(images, labels, config.batch_size),
        epochs=config.epochs,
        num_data=len(images),
        optimizer=build_optimizer(config, posterior),
        scheduler=build_scheduler(config),
        beta=build_beta(config),
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
    inside: ClassPredictive = bbh.predict(posterior, data.test_images, config.prediction_samples)
    outside: ClassPredictive = bbh.predict(
        posterior, data.outlier_images, config.prediction_samples
    )
    record = Record(
        study=run.study,
        variant=run.variant,
        method=config.method,
        preset=run.preset,
        seed=run.seed,
        config=asdict(config),
        metrics={
            **measure(posterior, inside, outside, data.test_labels),
            "seconds": seconds,
            "steps_per_second": history[-1].step / seconds,
            "parameters": float(sum(p.numel() for p in posterior.parameters())),
            "peak_memory_bytes": float(peak_memory_bytes(fabric.device)),
        },
        history=history.to_dicts(),
        data={data.name: data.fingerprint, "outliers": data.outlier_name, "split": config.split},
    )
    arrays = figure_arrays(data, inside, outside)
    arrays |= evaluation_arrays(posterior, data, config.prediction_samples)
    record.write(run.folder, arrays)
    run.checkpoint.unlink(missing_ok=True)
    return record


def _checkpoint_seconds(posterior: bbh.Posterior[Any]) -> float:
    state = 3 * sum(p.numel() * p.element_size() for p in posterior.parameters())
    return max(_CHECKPOINT_SECONDS, 20 * state / _BYTES_PER_SECOND)


def peak_memory_bytes(device: torch.device) -> int:
    """Of the card since ``run_once`` began; on a CPU of the process so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
