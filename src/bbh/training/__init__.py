"""From data to a posterior: fit, the step it takes, and what it leaves behind."""

from bbh.training.display import Display
from bbh.training.fitting import fit
from bbh.training.history import EpochRecord, History
from bbh.training.step import DivergedError

__all__ = ["Display", "DivergedError", "EpochRecord", "History", "fit"]
