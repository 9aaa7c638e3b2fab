"""Training: ``fit``, the training step it takes, and the history and checkpoints it writes."""

from bbh.generators.factored.adam import FactoredAdam, make_adam
from bbh.training.checkpoints import CheckpointError
from bbh.training.comparison import Comparison
from bbh.training.display import Display
from bbh.training.eager import EagerSteps
from bbh.training.features import cached_features
from bbh.training.fitting import fit
from bbh.training.history import EpochRecord, History
from bbh.training.members import fit_members
from bbh.training.options import Checkpoint, Validation
from bbh.training.recorded import RecordedSteps, make_steps
from bbh.training.sharding import sharded_strategy
from bbh.training.step import TrainingStep
from bbh.training.tuning import Trial, Tuned, tune
from bbh.training.verdicts import DivergedError

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Comparison",
    "Display",
    "DivergedError",
    "EagerSteps",
    "EpochRecord",
    "FactoredAdam",
    "History",
    "RecordedSteps",
    "TrainingStep",
    "Trial",
    "Tuned",
    "Validation",
    "cached_features",
    "fit",
    "fit_members",
    "make_adam",
    "make_steps",
    "sharded_strategy",
    "tune",
]
