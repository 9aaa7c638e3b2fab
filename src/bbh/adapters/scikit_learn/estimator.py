"""What the classifier and the regressor have in common: settings, training, draws, pickling."""

import copy
import inspect
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, no_type_check

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from bbh import checks
from bbh.adapters.scikit_learn.checking import Table, checked_rows
from bbh.adapters.scikit_learn.networks import (
    Blueprint,
    MakeNetwork,
    as_widths,
    check_outputs,
    dtype_of,
)
from bbh.adapters.scikit_learn.rows import Rows, learn_scaling, merge_equal_rows
from bbh.adapters.scikit_learn.storing import Method, as_method, from_bytes, to_bytes
from bbh.likelihoods import Likelihood
from bbh.objective import own_temperature
from bbh.posterior import Posterior
from bbh.prediction import predict
from bbh.prediction.draws import seeded
from bbh.predictive import Predictive
from bbh.training import History, fit

# Chosen on validation parts of diabetes, wine, breast cancer and Friedman's problem. These sweeps
# are not on record.
_STEPS, _EPOCHS, _BATCH = 1000, 20, 100
# Rows whose predictions are made at once: the outputs of all draws are kept for them.
_ROWS_AT_ONCE = 10_000
# torch has one source of random numbers, which fit and predict seed for themselves: threads take
# turns, or each would disturb the other's numbers.
_TURN = threading.RLock()


class BayesianEstimator(BaseEstimator):
    """The base of ``BayesianClassifier`` and ``BayesianRegressor``, which has their settings.

    Args:
        network: A ``torch.nn.Module`` that maps rows [B, features] to [B, outputs], or a function
            of (features, outputs) that makes one. None takes fully connected layers with ReLU. A
            network computes in the precision of its own weights; the default one in double
            precision.
        hidden_layer_sizes: Widths of the hidden layers of the default network; a number is
            one layer.
        method: How to infer the weights: a function of ``bbh.methods`` or its name, or a
            ``functools.partial`` of it with other settings.
        likelihood: How targets arise from outputs, see ``bbh.likelihoods``. None takes
            ``Categorical()`` for classes, and for numbers ``Gaussian()``, which learns their noise.
            A regressor takes ``Poisson()`` and ``NegativeBinomial()`` for counts too.
        standardise: Whether to scale the columns of X: to mean 0 and standard deviation 1, but for
            columns of zeros and ones, which stay as they are, and for sparse tables, whose columns
            are divided by their largest magnitude. Targets are always scaled by the likelihood.
        epochs: Passes over the data. None takes as many as make 1,000 steps, and at least 20.
        batch_size: Rows per training step. None takes 100, or all if there are fewer.
        learning_rate: Learning rate of Adam; None takes the method's own.
        temperature: Constant factor on the complexity: below 1 the posterior is narrower than the
            Bayesian one. None takes the method's own for so many weights and rows, see ``bbh.fit``.
        num_samples: The number of weight draws that predictions are averaged over.
        fit_arguments: Further arguments of ``bbh.fit`` by name.
        random_state: Seed of everything random: initial weights, batches, draws. Whatever it is,
            predictions of one fitted estimator are always made with the same draws.
        verbose: Whether to show a progress bar.

    Attributes:
        posterior_: The trained posterior, for everything else that the library offers.
        history_: A record of every epoch.
        n_features_in_: The number of columns seen by ``fit``.
        feature_names_in_: Their names, if X was a frame whose columns have names.
    """

    # As scikit-learn wants it, any value is taken here, and ``fit`` says what is wrong with it.
    @no_type_check
    def __init__(
        self,
        network: nn.Module | MakeNetwork | None = None,
        *,
        hidden_layer_sizes: Sequence[int] | int = (50,),
        method: Method | str = "bayes_by_hypernet",
        likelihood: Likelihood[Any] | None = None,
        standardise: bool = True,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        temperature: float | None = None,
        num_samples: int = 100,
        fit_arguments: Mapping[str, Any] | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ):
        self.network = network
        self.hidden_layer_sizes = hidden_layer_sizes
        self.method = method
        self.likelihood = likelihood
        self.standardise = standardise
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.temperature = temperature
        self.num_samples = num_samples
        self.fit_arguments = fit_arguments
        self.random_state = random_state
        self.verbose = verbose

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        # Whoever asks for help sees the settings too.
        settings = (inspect.getdoc(BayesianEstimator) or "").partition("\n\n")[2]
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{settings}"

    def predictive(self, X: Any) -> Predictive:
        """The whole predictive distribution of every row, as ``bbh.predict`` gives it.

        Args:
            X: Rows with the columns that ``fit`` saw.
        """
        return self._predictive(self._checked(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        inherited: Any = super().__getstate__()
        state: dict[str, Any] = dict(inherited)
        if "posterior_" in state:
            state["posterior_"] = to_bytes(state["posterior_"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        if "posterior_" in state:
            with _TURN, torch.random.fork_rng(devices=[]):  # building draws random numbers
                network = state["_blueprint"].build()
            state["posterior_"] = from_bytes(state["posterior_"], network, state["_method"])
        super().__setstate__(state)

    def _train(
        self,
        table: Table,
        targets: NDArray[Any],
        weights: NDArray[Any] | None,
        likelihood: Likelihood[Any],
        num_outputs: int,
    ) -> None:
        """Trains a new posterior.

        Args:
            table: The rows, checked.
            targets: Their classes [B] as integers, or their targets [B, k].
            weights: How often every row counts, or None.
            likelihood: The likelihood, of which a copy is trained.
            num_outputs: The number of outputs that it needs.
        """
        table, targets, counts = merge_equal_rows(table, targets, weights)
        self._scaling = learn_scaling(table, counts) if self.standardise else None
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._method = self.method
        self._blueprint = Blueprint(
            self.network, as_widths(self.hidden_layer_sizes), table.shape[1], num_outputs
        )
        with _TURN, seeded(self._seed, torch.device("cpu")):
            network = self._blueprint.build()
            dtype = dtype_of(network)
            posterior = as_method(self.method)(network, copy.deepcopy(likelihood).to(dtype))
            known = torch.from_numpy(targets)
            others = [known.to(dtype) if known.is_floating_point() else known]
            if (counts != 1).any():
                others.append(torch.from_numpy(counts / counts.mean()).to(dtype))
            rows = Rows(table, self._scaling, dtype, others)
            check_outputs(posterior, rows.inputs([0, 0]), num_outputs)
            temperature = self.temperature
            if temperature is None:
                temperature = own_temperature(posterior, float(counts.sum()))
            # The objective is a mean over different rows, and is to be one over all.
            self.history_ = self._fit(posterior, rows, temperature / float(counts.mean()))
        self.posterior_ = posterior

    def _fit(self, posterior: Posterior[Any], rows: Rows, temperature: float) -> History:
        batch_size = _BATCH if self.batch_size is None else self.batch_size
        checks.whole("batch_size", batch_size, 1, "take at least one row per step")
        batch_size = min(batch_size, len(rows))
        epochs = self.epochs
        if epochs is None:
            epochs = max(_EPOCHS, math.ceil(_STEPS / math.ceil(len(rows) / batch_size)))
        further = {} if self.fit_arguments is None else self.fit_arguments
        checks.instance("fit_arguments", further, Mapping, "pass a dictionary")
        arguments: dict[str, Any] = {
            "epochs": epochs,
            "learning_rate": self.learning_rate,
            "temperature": temperature,
            "progress": self.verbose,
        }
        return fit(posterior, rows.loader(batch_size), **arguments | dict(further))

    def _checked(self, X: Any) -> Table:
        check_is_fitted(self)
        return checked_rows(self, X)

    def _predictive(self, table: Table) -> Any:
        rows = Rows(table, self._scaling, dtype_of(self.posterior_))
        with _TURN, seeded(self._seed, self.posterior_.device):
            return predict(self.posterior_, rows.parts(), self.num_samples)

    def _predictives(self, X: Any) -> Iterator[Any]:
        """Predictive distributions of some rows after the other, all made with the same draws."""
        table = self._checked(X)
        for first in range(0, table.shape[0], _ROWS_AT_ONCE):
            yield self._predictive(table[first : first + _ROWS_AT_ONCE])


def joined(parts: Iterator[Tensor]) -> NDArray[Any]:
    """Results for some rows after the other as one array."""
    return np.concatenate([one.cpu().numpy() for one in parts])
