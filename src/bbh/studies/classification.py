"""One run of an image-classification study: train, measure, record."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

import bbh
from bbh import metrics
from bbh.predictive import ClassPredictive
from bbh.studies.build import build_beta, build_optimizer, build_posterior, build_scheduler
from bbh.studies.config import Config
from bbh.studies.datasets import ImageData
from bbh.studies.record import Record

# A layer-wise generator's state is 2.7 GB: written every epoch it would take most of the time.
_CHECKPOINT_SECONDS = 60.0


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
    config: Config,
    preset: str,
    seed: int,
    folder: Path,
    *,
    device: str = "auto",
    resume: bool = False,
) -> Record:
    """Trains and measures one posterior, and writes its record into ``folder``.

    An interrupted run goes on from its last epoch with ``resume``; a finished one is read back.
    """
    if resume and (folder / "record.json").exists():
        return Record.read(folder / "record.json")
    torch.manual_seed(seed)
    fabric = Fabric(accelerator=device, devices=1)
    data = study.data
    images, labels = (one.to(fabric.device) for one in (data.train_images, data.train_labels))
    posterior = build_posterior(config, study.make_network, bbh.likelihoods.Categorical())
    checkpoint = folder / "checkpoint.pt"
    history = bbh.fit(
        posterior,
        DeviceBatches(images, labels, config.batch_size),
        epochs=config.epochs,
        num_data=len(images),
        optimizer=build_optimizer(config),
        scheduler=build_scheduler(config),
        beta=build_beta(config),
        temperature=config.temperature,
        likelihood_samples=config.likelihood_samples or None,
        gradient_clip=config.gradient_clip or None,
        checkpoint=checkpoint,
        checkpoint_seconds=_CHECKPOINT_SECONDS,
        resume=resume,
        fabric=fabric,
    )
    seconds = sum(epoch.seconds for epoch in history)
    record = Record(
        study=study.name,
        method=config.method,
        preset=preset,
        seed=seed,
        config=asdict(config),
        metrics={
            **measure(posterior, data, config.prediction_samples),
            "seconds": seconds,
            "steps_per_second": history[-1].step / seconds,
            "parameters": float(sum(p.numel() for p in posterior.parameters())),
        },
        history=history.to_dicts(),
        data={data.name: data.fingerprint, "outliers": data.outlier_name},
    )
    record.write(folder)
    checkpoint.unlink(missing_ok=True)
    return record


def measure(posterior: bbh.Posterior[Any], data: ImageData, draws: int) -> dict[str, float]:
    """Quality on the test images, and how outliers differ."""
    inside: ClassPredictive = bbh.predict(posterior, data.test_images, draws)
    outside: ClassPredictive = bbh.predict(posterior, data.outlier_images, draws)
    classes = inside.mean.shape[1]
    wrong = inside.labels != data.test_labels
    return {
        **posterior.likelihood.metrics(inside, data.test_labels),
        "entropy_auc": metrics.entropy_auc(inside.entropy, classes),
        "outlier_entropy_auc": metrics.entropy_auc(outside.entropy, classes),
        "ood_auroc": metrics.auroc(inside.entropy, outside.entropy),
        "ood_aupr": metrics.aupr(inside.entropy, outside.entropy),
        "ood_fpr95": metrics.fpr_at_95_tpr(inside.entropy, outside.entropy),
        "ood_auroc_mi": metrics.auroc(inside.mutual_information, outside.mutual_information),
        "risk_coverage_area": metrics.risk_coverage_area(inside.entropy, wrong),
    }
