"""One run of an image-classification study: train, measure, record."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

import bbh
from bbh.predictive import ClassPredictive
from bbh.samples import Samples
from bbh.training.display import Display
from bbh_studies.config import Config
from bbh_studies.datasets import ImageData
from bbh_studies.images.augmentation import Augmentation, build_augmentation
from bbh_studies.images.between_classes import series_arrays
from bbh_studies.images.measures import figure_arrays, measure
from bbh_studies.inspection import leave_behind
from bbh_studies.record import Record
from bbh_studies.run import Run
from bbh_studies.training import Trained, train

# Enough for means and variances.
_STATISTICS_BATCHES = 50


class ShuffledBatches:
    """Batches of tensors that stay where they are: no worker, no copy to the device.

    Args:
        images: All of them.
        labels: Theirs.
        batch_size: Of every batch.
        augment: Makes other images of a batch; None leaves them as they are.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        batch_size: int,
        augment: Augmentation | None = None,
    ):
        self.images = images
        self.labels = labels
        self.batch_size = batch_size
        self.augment = augment

    def __len__(self) -> int:
        return len(self.images) // self.batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.images)).to(self.images.device)
        # A short last batch is left out; it is another one in every epoch.
        for index in order[: len(self) * self.batch_size].view(len(self), -1):
            images = self.images[index]
            yield images if self.augment is None else self.augment(images), self.labels[index]


def run_once(
    run: Run,
    data: ImageData,
    *,
    device: str = "auto",
    resume: bool = False,
    progress: bool | Display = True,
) -> Record:
    """Trains and measures one posterior, and writes its record.

    With ``resume`` an interrupted run goes on from its checkpoint.
    """
    data = on_split(data, run.config)
    trained = train_on(data, run, device=device, resume=resume, progress=progress)
    posterior, number = trained.posterior, run.config.prediction_samples
    draws = draws_with_statistics(posterior, run.config, data, number)
    leave_behind(run, posterior, data.test_images, draws)
    inside: ClassPredictive = bbh.predict(posterior, data.test_images, number, samples=draws)
    outside: ClassPredictive = bbh.predict(posterior, data.outlier_images, number, samples=draws)
    record = Record.of(
        run,
        metrics=measure(posterior, inside, outside, data.test_labels) | trained.effort,
        history=trained.history.to_dicts(),
        data=data_facts(data, run.config),
    )
    arrays = figure_arrays(data, inside, outside)
    if data.shows_digits:
        arrays |= series_arrays(posterior, data, number)
    record.write(run.folder, arrays)
    return record


def on_split(data: ImageData, config: Config) -> ImageData:
    """With the images to measure on in the place of test images."""
    return data.for_choosing() if config.split == "validation" else data


def train_on(
    data: ImageData, run: Run, *, device: str, resume: bool, progress: bool | Display
) -> Trained:
    """Fits the posterior a run describes to the training images."""
    return train(
        run,
        data.train_images,
        data.train_labels,
        _batches_of(run.config, data),
        device=device,
        resume=resume,
        progress=progress,
    )


def data_facts(data: ImageData, config: Config) -> dict[str, str]:
    """What a record says of its images."""
    return {
        data.name: data.fingerprint,
        "outliers": data.outlier_name,
        "split": config.split,
        **({"pixels": data.pixels} if data.pixels else {}),
    }


def draws_with_statistics(
    posterior: bbh.Posterior[Any], config: Config, data: ImageData, number: int
) -> Samples | None:
    """Weight draws with batch-norm statistics of their own; None where no layer has any."""
    if not any(
        isinstance(module, nn.BatchNorm2d) and module.track_running_stats
        for module in posterior.network.modules()
    ):
        return None
    batches = _batches_of(config, data)(data.train_images, data.train_labels)
    return bbh.refresh_batch_norm(posterior, islice(batches, _STATISTICS_BATCHES), number)


def _batches_of(config: Config, data: ImageData) -> Callable[[Tensor, Tensor], ShuffledBatches]:
    return partial(
        ShuffledBatches,
        batch_size=config.batch_size,
        augment=build_augmentation(config, side=data.train_images.shape[-1]),
    )
