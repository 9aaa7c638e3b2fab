"""Checks of tables, targets and weights, by scikit-learn's rules where it has some."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

# A NumPy array or a SciPy matrix in CSR form.
Table = Any
_TABLES: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}


def checked_rows(estimator: BaseEstimator, X: Any) -> Table:
    """Rows to predict as a table with the columns that ``fit`` saw."""
    return validate_data(estimator, X, reset=False, **_TABLES)


def checked_training(
    estimator: BaseEstimator, X: Any, y: Any, sample_weight: Any, **of_targets: Any
) -> tuple[Table, NDArray[Any], NDArray[Any] | None]:
    """Training rows, their targets and weights; the estimator learns its columns' names.

    Args:
        estimator: The estimator to be trained.
        X: The rows.
        y: Their targets.
        sample_weight: How often every row counts, or None.
        of_targets: What scikit-learn should allow as targets.
    """
    found: Any = validate_data(estimator, X, y, **_TABLES, **of_targets)
    table, targets = found
    return table, targets, _checked_weights(sample_weight, len(targets))


def _checked_weights(sample_weight: Any, num_rows: int) -> NDArray[Any] | None:
    if sample_weight is None:
        return None
    as_given: dict[str, Any] = {"ensure_2d": False, "dtype": np.float64}
    weights: Any = check_array(sample_weight, input_name="sample_weight", **as_given)
    if weights.shape != (num_rows,):
        raise ValueError(
            f"sample_weight has the shape {weights.shape}; give one number for each of the "
            f"{num_rows} rows."
        )
    if weights.min() < 0 or weights.max() == 0:
        raise ValueError("sample_weight must not be negative, nor zero for all rows.")
    return weights
