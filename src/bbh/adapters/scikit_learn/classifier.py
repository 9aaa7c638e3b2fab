"""A classifier for scikit-learn."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from bbh import checks
from bbh.adapters.scikit_learn.checking import checked_training
from bbh.adapters.scikit_learn.estimator import BayesianEstimator, joined
from bbh.likelihoods import Categorical


class BayesianClassifier(ClassifierMixin, BayesianEstimator):
    """A Bayesian neural network as a classifier of scikit-learn.

    ``predict_proba`` averages over the networks that the data leave plausible, and ``predictive``
    says how far they disagree.

    >>> X, y = [[-2.0], [-1.5], [1.5], [2.0]], ["no", "no", "yes", "yes"]
    >>> classifier = BayesianClassifier(epochs=50, random_state=0).fit(X, y)
    >>> classifier.predict([[-1.8], [1.8]]).tolist()
    ['no', 'yes']
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "BayesianClassifier":
        """Trains a new posterior.

        Args:
            X: Rows of numbers: an array, a frame or a sparse matrix.
            y: The class of every row, of any type that can be sorted.
            sample_weight: How often every row counts: weight 2 is the same as two equal rows, and
                weight 0 as none.
        """
        table, y, weights = checked_training(self, X, y, sample_weight)
        check_classification_targets(y)
        self.classes_, labels = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"the training rows have one class only, {self.classes_[0]}: a classifier needs at "
                "least two."
            )
        likelihood = Categorical() if self.likelihood is None else self.likelihood
        checks.instance("likelihood", likelihood, Categorical, "classes need Categorical()")
        self._train(table, labels, weights, likelihood, len(self.classes_))
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of every row.

        Args:
            X: Rows with the columns that ``fit`` saw.
        """
        labels = joined(one.labels for one in self._predictives(X))
        return self.classes_[labels]

    def predict_proba(self, X: Any) -> Float[np.ndarray, "rows classes"]:
        """The probability of every class, in the order of ``classes_``.

        Args:
            X: Rows with the columns that ``fit`` saw.
        """
        return joined(one.mean for one in self._predictives(X))

    def predict_log_proba(self, X: Any) -> Float[np.ndarray, "rows classes"]:
        """The logarithm of ``predict_proba``.

        Args:
            X: Rows with the columns that ``fit`` saw.
        """
        # A probability that rounds to zero is not impossible.
        probs = self.predict_proba(X)
        return np.log(np.maximum(probs, np.finfo(probs.dtype).tiny))

    def evaluate(self, X: Any, y: Any) -> dict[str, float]:
        """Error in per cent, negative log likelihood, Brier score, calibration error.

        Args:
            X: Rows with the columns that ``fit`` saw.
            y: Their classes.
        """
        predictive = self.predictive(X)
        known = column_or_1d(y)
        unknown = np.setdiff1d(known, self.classes_).tolist()
        if unknown:
            raise ValueError(f"y has classes that fit did not see: {unknown[:5]}.")
        labels = torch.from_numpy(np.searchsorted(self.classes_, known))
        return self.posterior_.likelihood.metrics(predictive, labels)
