"""scikit-learn's own checks of estimators: all of them, without exceptions."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from bbh.adapters import BayesianClassifier, BayesianRegressor

# Enough to learn what the checks ask for, on data of a few hundred rows.
QUICK = {
    "hidden_layer_sizes": (10,),
    "method": "maximum_a_posteriori",
    "epochs": 6,
    "learning_rate": 0.1,
    "fit_arguments": {"compare": False},
}


@parametrize_with_checks([BayesianClassifier(**QUICK), BayesianRegressor(**QUICK)])
def test_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([BayesianClassifier(), BayesianRegressor()])
def test_checks_of_defaults(estimator, check):
    check(estimator)
