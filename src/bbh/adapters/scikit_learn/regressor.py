"""A regressor for scikit-learn."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from bbh import checks
from bbh.adapters.scikit_learn.checking import Table, checked_training
from bbh.adapters.scikit_learn.estimator import BayesianEstimator, joined
from bbh.likelihoods import Counts, Gaussian, HeteroscedasticGaussian, Regression
from bbh.predictive import Predictive


class BayesianRegressor(RegressorMixin, BayesianEstimator):
    """A Bayesian neural network as a regressor of scikit-learn.

    Predictions come with standard deviations, quantiles and intervals of a new observation, all in
    the units of y. There may be several targets.

    >>> X, y = [[-2.0], [-1.0], [1.0], [2.0]], [100.0, 200.0, 400.0, 500.0]
    >>> regressor = BayesianRegressor(epochs=50, random_state=0).fit(X, y)
    >>> mean, std = regressor.predict([[0.0], [100.0]], return_std=True)
    >>> bool(std[1] > std[0])
    True
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "BayesianRegressor":
        """Trains a new posterior.

        Args:
            X: Rows of numbers: an array, a frame or a sparse matrix.
            y: One target for every row, or several.
            sample_weight: How often every row counts: weight 2 is the same as two equal rows, and
                weight 0 as none.
        """
        table, y, weights = checked_training(
            self, X, y, sample_weight, y_numeric=True, multi_output=True
        )
        self._single = y.ndim == 1
        targets = np.array(y, dtype=np.float64).reshape(len(y), -1)
        likelihood = Gaussian() if self.likelihood is None else self.likelihood
        fitting = "numbers need Gaussian() or the like, counts Poisson() or NegativeBinomial()"
        checks.instance("likelihood", likelihood, (Regression, Counts), fitting)
        outputs_per_target = 2 if isinstance(likelihood, HeteroscedasticGaussian) else 1
        num_outputs = outputs_per_target * targets.shape[1]
        self._train(table, targets, weights, likelihood, num_outputs)
        return self

    def predict(
        self, X: Any, return_std: bool = False
    ) -> NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]:
        """The mean of a new observation for every row.

        Args:
            X: Rows with the columns that ``fit`` saw.
            return_std: Whether to return the standard deviation of a new observation too, in a
                tuple.
        """
        if not return_std:
            return joined(one.mean for one in self._predictives(X))
        both = joined(torch.stack([one.mean, one.total_std], 1) for one in self._predictives(X))
        return both[:, 0], both[:, 1]

    def predict_quantiles(
        self, X: Any, quantiles: Sequence[float]
    ) -> Float[np.ndarray, "rows *targets quantiles"]:
        """Quantiles of a new observation, the last axis: 0.5 gives the median.

        Args:
            X: Rows with the columns that ``fit`` saw.
            quantiles: Levels between 0 and 1.
        """
        parts = (one.quantiles(quantiles).movedim(0, -1) for one in self._predictives(X))
        return joined(parts)

    def predict_interval(
        self, X: Any, coverage: float = 0.95
    ) -> tuple[Float[np.ndarray, "rows *targets"], Float[np.ndarray, "rows *targets"]]:
        """Lower and upper end of the interval that holds a new observation with a probability.

        Args:
            X: Rows with the columns that ``fit`` saw.
            coverage: This probability. As much lies below the interval as above.
        """
        ends = joined(torch.stack(one.interval(coverage), 1) for one in self._predictives(X))
        return ends[:, 0], ends[:, 1]

    def evaluate(self, X: Any, y: Any) -> dict[str, float]:
        """Root mean squared error, negative log likelihood, coverage of the 95 % interval, CRPS.

        Args:
            X: Rows with the columns that ``fit`` saw.
            y: Their targets.
        """
        predictive = self.predictive(X)
        targets = torch.from_numpy(np.array(y, dtype=np.float64)).to(predictive.mean.dtype)
        return self.posterior_.likelihood.metrics(predictive, targets)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _predictive(self, table: Table) -> Predictive:
        predictive: Predictive = super()._predictive(table)
        if not self._single:
            return predictive
        of_draws = {name: getattr(predictive, name) for name in predictive.per_draw}
        known = {"mean": predictive.mean, **of_draws}
        single: dict[str, Any] = {
            name: value.squeeze(-1) for name, value in known.items() if value is not None
        }
        return replace(predictive, **single)
