"""From a posterior to statements about new inputs, within a memory bound."""

from bbh.prediction.batch_norm import refresh_batch_norm
from bbh.prediction.predicting import MEMORY_LIMIT, evaluate, predict

__all__ = ["MEMORY_LIMIT", "evaluate", "predict", "refresh_batch_norm"]
