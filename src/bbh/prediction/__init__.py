"""Prediction: what a posterior says about new inputs, computed within a memory limit."""

from bbh.prediction.batch_norm import refresh_batch_norm
from bbh.prediction.predicting import MEMORY_LIMIT, evaluate, predict, predict_with_targets

__all__ = ["MEMORY_LIMIT", "evaluate", "predict", "predict_with_targets", "refresh_batch_norm"]
