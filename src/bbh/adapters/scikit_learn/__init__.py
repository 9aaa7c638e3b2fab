"""Estimators of scikit-learn whose predictions come with their uncertainty.

``BayesianClassifier`` and ``BayesianRegressor`` take tables (NumPy arrays, pandas frames, sparse
matrices) and work wherever estimators do: in pipelines, cross-validation and grid searches.
"""

from bbh.adapters.scikit_learn.classifier import BayesianClassifier
from bbh.adapters.scikit_learn.estimator import BayesianEstimator
from bbh.adapters.scikit_learn.regressor import BayesianRegressor

__all__ = ["BayesianClassifier", "BayesianEstimator", "BayesianRegressor"]
