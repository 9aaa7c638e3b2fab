"""Data sets of the studies, embedded or fetched; the library itself has none."""

from collections.abc import Mapping

from bbh_studies.datasets.base import ImageData
from bbh_studies.datasets.cifar5 import load_cifar5
from bbh_studies.datasets.cifar10 import CIFAR10
from bbh_studies.datasets.digits import load_digits
from bbh_studies.datasets.idx import DataError
from bbh_studies.datasets.letters import draw_letters
from bbh_studies.datasets.mnist import load_mnist
from bbh_studies.datasets.sources import MNIST, NOTMNIST, Source

SOURCES: Mapping[str, Mapping[str, Source]] = {
    "mnist": MNIST,
    "notmnist": NOTMNIST,
    "cifar10": {CIFAR10.name: CIFAR10},
}

__all__ = [
    "SOURCES",
    "DataError",
    "ImageData",
    "draw_letters",
    "load_cifar5",
    "load_digits",
    "load_mnist",
]
