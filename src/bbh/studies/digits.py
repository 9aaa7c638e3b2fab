"""All six methods on scikit-learn's 8×8 digits: the demonstration, offline and in a minute."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh import methods, metrics
from bbh.studies.datasets import load_digits
from bbh.studies.networks import digits_network

METHODS: dict[str, Callable[..., bbh.Posterior[Any]]] = {
    "MAP": methods.maximum_a_posteriori,
    "Deep ensemble": methods.deep_ensemble,
    "Bayes by Backprop": methods.bayes_by_backprop,
    "MC dropout": methods.mc_dropout,
    "MNF": methods.multiplicative_normalizing_flows,
    "Bayes by Hypernet": methods.bayes_by_hypernet,
}


@dataclass(frozen=True)
class Result:
    """One row of the demonstration's table."""

    method: str
    metrics: dict[str, float]


def run(epochs: int = 40, seed: int = 0) -> Iterator[Result]:
    """Trains and measures the methods one after the other."""
    data = load_digits()
    train_set = TensorDataset(data.train_images, data.train_labels)
    for name, method in METHODS.items():
        torch.manual_seed(seed)
        posterior = method(digits_network(), bbh.likelihoods.Categorical())
        loader = DataLoader(train_set, batch_size=64, shuffle=True)
        started = time.perf_counter()
        beta = bbh.Linear(epochs * 0.05, epochs * 0.5)
        bbh.fit(posterior, loader, epochs=epochs, beta=beta, progress=False)
        seconds = time.perf_counter() - started
        inside = bbh.predict(posterior, data.test_images)
        outside = bbh.predict(posterior, data.outlier_images)
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
