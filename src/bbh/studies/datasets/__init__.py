"""Data sets of the studies, embedded or fetched; the library itself knows none."""

from bbh.studies.datasets.base import ImageData
from bbh.studies.datasets.digits import load_digits
from bbh.studies.datasets.idx import DataError
from bbh.studies.datasets.letters import draw_letters
from bbh.studies.datasets.mnist import load_mnist
from bbh.studies.datasets.sources import SOURCES

__all__ = ["SOURCES", "DataError", "ImageData", "draw_letters", "load_digits", "load_mnist"]
