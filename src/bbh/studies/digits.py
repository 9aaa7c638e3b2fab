"""All six methods on scikit-learn's 8×8 digits: the demonstration, offline and in a minute."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh import methods, metrics

NUM_TRAIN = 1297
METHODS: dict[str, Callable[..., bbh.Posterior[Any]]] = {
    "MAP": methods.maximum_a_posteriori,
    "Deep ensemble": methods.deep_ensemble,
    "Bayes by Backprop": methods.bayes_by_backprop,
    "MC dropout": methods.mc_dropout,
    "MNF": methods.multiplicative_normalizing_flows,
    "Bayes by Hypernet": methods.bayes_by_hypernet,
}


@dataclass(frozen=True)
class Digits:
    """Images [B, 1, 8, 8] in [0, 1]; outliers are test digits with their pixels shuffled."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    outliers: Tensor


@dataclass(frozen=True)
class Result:
    """One row of the demonstration's table."""

    method: str
    metrics: dict[str, float]


def load() -> Digits:
    """The data, split the same way every time."""
    bunch: Any = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(bunch.target)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(images), generator=generator)
    train, test = order[:NUM_TRAIN], order[NUM_TRAIN:]
    # The same brightness and pixel values as a digit, and none of its strokes.
    pixels = torch.stack([torch.randperm(64, generator=generator) for _ in test])
    outliers = images[test].flatten(1).gather(1, pixels).view(-1, 1, 8, 8)
    return Digits(images[train], labels[train], images[test], labels[test], outliers)


def make_network() -> nn.Module:
    """A small convolutional network, the same for all methods."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def run(epochs: int = 40, seed: int = 0) -> Iterator[Result]:
    """Trains and measures the methods one after the other."""
    data = load()
    train_set = TensorDataset(data.train_images, data.train_labels)
    for name, method in METHODS.items():
        torch.manual_seed(seed)
        posterior = method(make_network(), bbh.likelihoods.Categorical())
        loader = DataLoader(train_set, batch_size=64, shuffle=True)
        started = time.perf_counter()
        beta = bbh.Linear(epochs * 0.05, epochs * 0.5)
        bbh.fit(posterior, loader, epochs=epochs, beta=beta, progress=False)
        seconds = time.perf_counter() - started
        inside = bbh.predict(posterior, data.test_images)
        outside = bbh.predict(posterior, data.outliers)
        yield Result(
            name,
            {
                "error": metrics.error(inside.mean, data.test_labels),
                "nll": metrics.nll(inside.mean, data.test_labels),
                "ece": metrics.expected_calibration_error(inside.mean, data.test_labels),
                "entropy": float(inside.entropy.mean()),
                "outlier_entropy": float(outside.entropy.mean()),
                "ood_auroc": metrics.auroc(inside.entropy, outside.entropy),
                "seconds": seconds,
            },
        )
