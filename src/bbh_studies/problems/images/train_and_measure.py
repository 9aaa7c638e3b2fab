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
from bbh_studies.datasets import ImageData
from bbh_studies.problems.images.augmentation import Augmentation
from bbh_studies.problems.images.between_classes import series_arrays
from bbh_studies.problems.images.measures import figure_arrays, measure
from bbh_studies.problems.images.problem import ImageProblem
from bbh_studies.record import Record
from bbh_studies.run.leftovers import leave_behind
from bbh_studies.run.run import Run
from bbh_studies.run.train import Trained, train

# Batches from which means and variances of batch norm are estimated.
_STATISTICS_BATCHES = 50


class ShuffledBatches:
    """Shuffled batches of tensors that stay on their device: no workers and no copies.

    Args:
        images: All training images.
        labels: Their labels.
        batch_size: Images in every batch.
        augment: Changes the images of a batch at random; None leaves them as they are.
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
        # A short last batch is left out; it has other images in every epoch.
        for index in order[: len(self) * self.batch_size].view(len(self), -1):
            images = self.images[index]
            yield images if self.augment is None else self.augment(images), self.labels[index]


def train_and_measure(
    run: Run,
    *,
    data: ImageData,
    device: str = "auto",
    resume: bool = False,
    progress: bool | Display = True,
) -> Record:
    """Trains and measures one posterior, and writes its record.

    With ``resume`` an interrupted run goes on from its checkpoint.
    """
    problem = image_problem(run)
    data = problem.on_split(data)
    trained = train_on(data, run, device=device, resume=resume, progress=progress)
    posterior, number = trained.posterior, problem.prediction_samples
    draws = draws_with_statistics(posterior, run, data, number)
    leave_behind(run, posterior, data.test_images, draws)
    inside: ClassPredictive = bbh.predict(posterior, data.test_images, number, samples=draws)
    outside: ClassPredictive = bbh.predict(posterior, data.outlier_images, number, samples=draws)
    record = Record.of(
        run,
        metrics=measure(posterior, inside, outside, data.test_labels) | trained.effort,
        history=trained.history.to_dicts(),
        data=data_facts(data, problem.split),
    )
    arrays = figure_arrays(data, inside, outside)
    if data.shows_digits:
        arrays |= series_arrays(posterior, data, number)
    record.write(run.folder, arrays)
    return record


def image_problem(run: Run) -> ImageProblem:
    """The problem of a run, which must be one with images."""
    problem = run.config.problem
    assert isinstance(problem, ImageProblem)
    return problem


def train_on(
    data: ImageData, run: Run, *, device: str, resume: bool, progress: bool | Display
) -> Trained:
    """Fits the posterior a run describes to the training images."""
    return train(
        run,
        data.train_images,
        data.train_labels,
        _batches_of(run, data),
        device=device,
        resume=resume,
        progress=progress,
    )


def data_facts(data: ImageData, split: str) -> dict[str, str]:
    """What a record says about its images: names, fingerprint and split."""
    return {
        data.name: data.fingerprint,
        "outliers": data.outlier_name,
        "split": split,
        **({"pixels": data.pixels} if data.pixels else {}),
    }


def draws_with_statistics(
    posterior: bbh.Posterior[Any], run: Run, data: ImageData, number: int
) -> Samples | None:
    """Weight draws with batch-norm statistics of their own; None if no layer has statistics."""
    if not any(
        isinstance(module, nn.BatchNorm2d) and module.track_running_stats
        for module in posterior.network.modules()
    ):
        return None
    batches = _batches_of(run, data)(data.train_images, data.train_labels)
    return bbh.refresh_batch_norm(posterior, islice(batches, _STATISTICS_BATCHES), number)


def _batches_of(run: Run, data: ImageData) -> Callable[[Tensor, Tensor], ShuffledBatches]:
    return partial(
        ShuffledBatches,
        batch_size=run.config.training.batch_size,
        augment=image_problem(run).make_augmentation(side=data.train_images.shape[-1]),
    )
