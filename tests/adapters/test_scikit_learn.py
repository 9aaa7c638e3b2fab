"""The estimators beside the library itself, and in scikit-learn's pipelines and searches."""

import functools
import pickle
import threading

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import bbh
from bbh.adapters import BayesianClassifier, BayesianRegressor

MAP = {"method": "maximum_a_posteriori", "learning_rate": 0.1, "random_state": 0}
QUICK = MAP | {"epochs": 5, "hidden_layer_sizes": (5,), "fit_arguments": {"compare": False}}


def line(number=40, noise=0.1):
    """y = 1000 + 50·x, far from zero and from one."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (number, 1))
    return X, 1000 + 50 * (X[:, 0] + noise * rng.normal(size=number))


def linear(inputs, outputs):
    return torch.nn.Linear(inputs, outputs)


class TestRegressor:
    def test_agrees_with_exact_bayesian_regression(self):
        """A linear network with Bayes by Backprop, beside scikit-learn's BayesianRidge."""
        X, y = line(100, noise=0.3)
        ours = BayesianRegressor(
            hidden_layer_sizes=(),
            method="bayes_by_backprop",
            epochs=200,
            learning_rate=0.05,
            random_state=0,
            num_samples=500,
        ).fit(X, y)
        exact = BayesianRidge().fit(X, y)
        inside = np.linspace(-1, 1, 9)[:, None]
        (mean, std), (known, spread) = (
            one.predict(inside, return_std=True) for one in (ours, exact)
        )
        np.testing.assert_allclose(mean, known, atol=3)  # noise is 15
        np.testing.assert_allclose(std, spread, rtol=0.15)
        lower, upper = ours.predict_interval(inside, 0.95)
        np.testing.assert_allclose(upper - lower, 2 * 1.96 * spread, rtol=0.15)

    def test_quantiles_intervals_and_the_predictive_are_one_distribution(self):
        X, y = line()
        fitted = BayesianRegressor(**QUICK | {"method": "deep_ensemble"}).fit(X, y)
        quantiles = fitted.predict_quantiles(X, [0.05, 0.5, 0.95])
        assert quantiles.shape == (40, 3)
        np.testing.assert_allclose(fitted.predict_interval(X, 0.9), quantiles[:, [0, 2]].T)
        predictive = fitted.predictive(X)
        mean, std = fitted.predict(X, return_std=True)
        np.testing.assert_array_equal(predictive.mean, mean)
        np.testing.assert_array_equal(predictive.total_std, std)
        known = fitted.evaluate(X, y)
        assert known["error"] == pytest.approx(np.sqrt(np.mean((mean - y) ** 2)))

    def test_several_targets(self):
        X, y = line()
        fitted = BayesianRegressor(**QUICK).fit(X, np.stack([y, -1e6 * y], axis=1))
        mean, std = fitted.predict(X[:7], return_std=True)
        assert mean.shape == std.shape == (7, 2)
        assert fitted.predict_quantiles(X[:7], [0.1, 0.2, 0.9]).shape == (7, 2, 3)
        assert mean[:, 0] == pytest.approx(1000, rel=0.1)
        assert mean[:, 1] == pytest.approx(-1e9, rel=0.1)

    def test_noise_that_depends_on_the_row(self):
        X, y = line()
        likelihood = bbh.likelihoods.HeteroscedasticGaussian()
        fitted = BayesianRegressor(likelihood=likelihood, **QUICK).fit(X, y)
        assert len(np.unique(fitted.predictive(X).aleatoric_std)) > 1
        assert not likelihood.target_loc.numel()  # the user's own object is as it was

    def test_many_rows_come_in_parts_with_the_same_draws(self, monkeypatch):
        X, y = line()
        fitted = BayesianRegressor(**QUICK | {"method": "bayes_by_backprop"}).fit(X, y)
        whole = fitted.predict_interval(X)
        monkeypatch.setattr("bbh.adapters.scikit_learn.estimator._ROWS_AT_ONCE", 7)
        np.testing.assert_allclose(fitted.predict_interval(X), whole, rtol=1e-10)


class TestClassifier:
    @pytest.mark.parametrize(
        "labels",
        [["no", "yes"], [False, True], [-7, 10**9], [1.0, 2.0], ["c", "a", "b"]],
        ids=str,
    )
    def test_labels_of_any_type(self, labels):
        X = np.repeat(np.eye(len(labels)), 10, axis=0)
        y = np.repeat(labels, 10)
        fitted = BayesianClassifier(**QUICK | {"epochs": 20}).fit(X, y)
        assert fitted.predict(X).tolist() == y.tolist()
        assert fitted.classes_.tolist() == sorted(labels)
        probs = fitted.predict_proba(X)
        assert (fitted.classes_[probs.argmax(1)] == y).all()
        np.testing.assert_allclose(probs.sum(1), 1)
        np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), probs)
        assert fitted.evaluate(X, y)["error"] == 0

    def test_disagreement_is_larger_far_from_the_data(self):
        rng = np.random.default_rng(0)
        X = np.concatenate([rng.normal(-1, 0.3, (40, 2)), rng.normal(1, 0.3, (40, 2))])
        fitted = BayesianClassifier(epochs=80, random_state=0).fit(X, np.repeat([0, 1], 40))
        near, far = (fitted.predictive(one).mutual_information.mean() for one in (X, [[8.0, -8.0]]))
        assert far > 5 * near

    def test_unknown_classes(self):
        fitted = BayesianClassifier(**QUICK).fit([[0.0], [1.0]], ["a", "b"])
        with pytest.raises(ValueError, match="did not see: \\['c'\\]"):
            fitted.evaluate([[0.0]], ["c"])

    def test_one_class(self):
        with pytest.raises(ValueError, match="one class only, a:"):
            BayesianClassifier(**QUICK).fit([[0.0], [1.0]], ["a", "a"])


class TestTables:
    def test_columns_are_standardised(self):
        """Other units of a column change nothing."""
        X, y = line()
        one = BayesianRegressor(**QUICK).fit(X, y).predict(X)
        other = BayesianRegressor(**QUICK).fit(1e6 * X + 1e8, y).predict(1e6 * X + 1e8)
        np.testing.assert_allclose(one, other, rtol=1e-3)
        raw = BayesianRegressor(standardise=False, **QUICK).fit(X, y).predict(X)
        by_hand = make_pipeline(StandardScaler(), BayesianRegressor(standardise=False, **QUICK))
        np.testing.assert_allclose(by_hand.fit(X, y).predict(X), one, rtol=1e-3)
        assert not np.allclose(raw, one, rtol=1e-4)

    def test_a_rare_category_does_not_become_a_huge_number(self):
        X = np.zeros((1000, 2))
        X[0, 0], X[:, 1] = 1, np.arange(1000)
        fitted = BayesianRegressor(**QUICK | {"epochs": 1}).fit(X, X[:, 1])
        assert fitted._scaling(X)[0, 0] == 1
        np.testing.assert_allclose(fitted._scaling(X)[:, 1].std(), 1)

    def test_constant_columns(self):
        X, y = line()
        fitted = BayesianRegressor(**QUICK).fit(np.hstack([X, np.full_like(X, 7)]), y)
        assert np.isfinite(fitted.predict(np.hstack([X, np.full_like(X, 9)]))).all()

    @pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csc_array, sparse.coo_array])
    def test_sparse_rows_are_the_dense_ones(self, form):
        X = np.random.default_rng(0).uniform(0, 4, (30, 6)) * np.eye(30, 6)
        y = X.sum(1)
        settings = QUICK | {"standardise": False}
        ours = BayesianRegressor(**settings).fit(form(X), y)
        dense = BayesianRegressor(**settings).fit(X, y)
        # Sorted differently, so that other rows are in a batch.
        assert ours.predict(form(X)).shape == dense.predict(X).shape
        np.testing.assert_allclose(ours.predict(form(X)), ours.predict(X), rtol=1e-10)
        scaled = BayesianRegressor(**QUICK).fit(form(X), y)
        np.testing.assert_array_equal(scaled._scaling.scale, X.max(0))
        assert scaled._scaling.loc is None

    def test_frames_keep_their_names(self):
        X, y = line()
        frame = pd.DataFrame({"size": X[:, 0], "age": X[:, 0] ** 2})
        fitted = BayesianRegressor(**QUICK).fit(frame, pd.Series(y))
        assert fitted.feature_names_in_.tolist() == ["size", "age"]
        assert fitted.n_features_in_ == 2
        with pytest.raises(ValueError, match="feature names"):
            fitted.predict(frame.rename(columns={"age": "height"}))

    def test_order_and_repetition_of_rows_do_not_matter(self):
        X, y = line()
        weights = np.arange(40) % 3
        one = BayesianRegressor(**QUICK).fit(X, y, sample_weight=weights)
        order = np.random.default_rng(1).permutation(np.repeat(np.arange(40), weights))
        other = BayesianRegressor(**QUICK).fit(X[order], y[order])
        np.testing.assert_array_equal(one.predict(X), other.predict(X))
        fractions = BayesianRegressor(**QUICK).fit(X, y, sample_weight=0.5 * weights)
        assert not np.array_equal(fractions.predict(X), one.predict(X))

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            ([-1.0, 1.0], "negative"),
            ([0, 0], "zero for all"),
            ([1.0], "one number"),
            ([1, np.nan], "NaN"),
        ],
    )
    def test_weights_that_cannot_be_meant(self, weights, message):
        with pytest.raises(ValueError, match=message):
            BayesianRegressor(**QUICK).fit([[0.0], [1.0]], [0.0, 1.0], sample_weight=weights)


class TestSettings:
    @pytest.mark.parametrize("name", bbh.methods.registered())
    def test_every_method(self, name):
        X, y = line(10)
        settings = QUICK | {"method": name, "epochs": 2, "num_samples": 4}
        fitted = BayesianRegressor(**settings).fit(X, y)
        assert fitted.posterior_.recipe.method == name
        again = pickle.loads(pickle.dumps(fitted))
        np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
        np.testing.assert_array_equal(again.predict_interval(X), fitted.predict_interval(X))

    @pytest.mark.parametrize(
        "likelihood", [bbh.likelihoods.Poisson(), bbh.likelihoods.NegativeBinomial()], ids=str
    )
    def test_counts(self, likelihood):
        X = np.repeat([[0.0], [1.0]], 200, axis=0)
        y = np.random.default_rng(0).poisson(np.where(X[:, 0] == 1, 20, 2))
        settings = MAP | {"likelihood": likelihood, "epochs": 150, "learning_rate": 0.1}
        fitted = BayesianRegressor(linear, **settings).fit(X, y)
        mean, std = fitted.predict([[0.0], [1.0]], return_std=True)
        np.testing.assert_allclose(mean, [2, 20], rtol=0.15)
        np.testing.assert_allclose(std, np.sqrt([2, 20]), rtol=0.3)
        lower, upper = fitted.predict_interval(X)
        assert ((lower <= y) & (y <= upper)).mean() > 0.9
        assert fitted.evaluate(X, y).keys() >= {"nll", "mae"}
        again = pickle.loads(pickle.dumps(fitted))
        np.testing.assert_array_equal(again.predict(X), fitted.predict(X))

    def test_a_quantile(self):
        X, y = line(10)
        settings = QUICK | {"likelihood": bbh.likelihoods.Quantile(0.9)}
        fitted = BayesianRegressor(**settings).fit(X, y)
        assert fitted.predict(X).shape == (10,)
        with pytest.raises(AttributeError, match="one quantile"):
            fitted.predict(X, return_std=True)

    def test_a_single_width_is_one_layer(self):
        fitted = BayesianRegressor(**QUICK | {"hidden_layer_sizes": 7}).fit(*line(10))
        assert fitted.posterior_.weights.shapes["0.weight"] == (7, 1)

    def test_a_method_with_settings_of_its_own(self):
        X, y = line(10)
        method = functools.partial(bbh.methods.deep_ensemble, num_members=3)
        fitted = BayesianRegressor(linear, **QUICK | {"method": method}).fit(X, y)
        assert fitted.predictive(X).num_samples == 3
        assert pickle.loads(pickle.dumps(fitted)).predictive(X).num_samples == 3

    def test_networks(self):
        X, y = line(10)
        own = torch.nn.Linear(1, 1)
        before = own.weight.detach().clone()
        fitted = BayesianRegressor(own, **QUICK).fit(X, y)
        assert torch.equal(own.weight, before)
        assert fitted.predict(X).dtype == np.float32  # that of the network
        assert BayesianRegressor(linear, **QUICK).fit(X, y).predict(X).shape == (10,)
        again = pickle.loads(pickle.dumps(fitted))
        np.testing.assert_array_equal(again.predict(X), fitted.predict(X))

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"method": "magic"}, "method='magic'.*bayes_by_hypernet"),
            ({"network": 3}, "network=3"),
            ({"network": torch.nn.Linear(1, 2)}, r"\[2, 2\]; \[2, 1\] are needed"),
            ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes=0"),
            ({"hidden_layer_sizes": None}, "hidden_layer_sizes=None"),
            ({"fit_arguments": 3}, "fit_arguments=3: pass a dictionary"),
            ({"batch_size": 0}, "batch_size=0"),
            ({"epochs": 0}, "epochs=0"),
            ({"likelihood": bbh.likelihoods.Categorical()}, "numbers need Gaussian"),
        ],
        ids=str,
    )
    def test_what_cannot_work(self, settings, message):
        with pytest.raises((TypeError, ValueError), match=message):
            BayesianRegressor(**QUICK | settings).fit([[0.0], [1.0]], [0.0, 1.0])

    def test_numbers_too_large_are_named(self):
        for X, y, named in (([[0.0], [1e300]], [0.0, 1.0], "X"), ([[0.0], [1.0]], [0, 1e300], "t")):
            with pytest.raises(ValueError, match=rf"the (numbers of )?{named}\w* or their squares"):
                BayesianRegressor(**QUICK).fit(X, y)

    def test_a_damaged_pickle(self):
        whole = bytearray(pickle.dumps(BayesianRegressor(linear, **QUICK).fit(*line(10))))
        whole[whole.index(b"maximum_a_posteriori", whole.index(b"__metadata__"))] ^= 1
        with pytest.raises(bbh.storage.StorageError, match="the posterior in the pickle was"):
            pickle.loads(bytes(whole))

    def test_classes_need_their_likelihood(self):
        with pytest.raises(TypeError, match="classes need Categorical"):
            BayesianClassifier(likelihood=bbh.likelihoods.Bernoulli(), **QUICK).fit(
                [[0.0], [1.0]], [0, 1]
            )

    def test_help_has_the_settings(self):
        assert "hidden_layer_sizes: Widths" in (BayesianClassifier.__doc__ or "")

    def test_random_numbers_of_others_are_left_alone(self):
        X, y = line(10)
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        np.random.seed(5)  # noqa: NPY002, what the user may draw from
        state = np.random.get_state()[1].tolist()  # noqa: NPY002
        pickle.loads(pickle.dumps(BayesianRegressor(**QUICK).fit(X, y))).predict(X)
        assert torch.equal(torch.rand(3), expected)
        assert np.random.get_state()[1].tolist() == state  # noqa: NPY002

    def test_threads_take_turns(self):
        X, y = line(10)
        alone = BayesianRegressor(**QUICK).fit(X, y).predict(X)
        found: list[np.ndarray] = []

        def work():
            found.append(BayesianRegressor(**QUICK).fit(X, y).predict(X))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert len(found) == 4
        for one in found:
            np.testing.assert_array_equal(one, alone)


class TestElsewhere:
    def test_a_frame_with_categories_in_a_grid_search(self):
        X, y = line(60)
        frame = pd.DataFrame({"size": X[:, 0], "colour": np.resize(["red", "blue", "green"], 60)})
        encode = make_column_transformer((OneHotEncoder(), ["colour"]), remainder="passthrough")
        pipeline = make_pipeline(encode, BayesianRegressor(**QUICK))
        # One step cannot be as good as forty.
        grid = {"bayesianregressor__epochs": [1, 40]}
        search = GridSearchCV(pipeline, grid, cv=2).fit(frame, y)
        assert search.best_params_ == {"bayesianregressor__epochs": 40}
        assert search.best_estimator_.predict(frame, return_std=True)[1].shape == (60,)

    def test_words(self):
        texts = ["good film", "very good", "bad film", "very bad", "a good one", "a bad one"]
        y = ["+", "+", "-", "-", "+", "-"]
        pipeline = make_pipeline(TfidfVectorizer(), BayesianClassifier(**QUICK | {"epochs": 30}))
        assert pipeline.fit(texts, y).predict(["good", "bad"]).tolist() == ["+", "-"]

    @pytest.mark.slow
    def test_several_processes(self):
        X, y = line()
        estimator = BayesianRegressor(**QUICK | {"epochs": 40})
        one, two = (cross_val_score(clone(estimator), X, y, cv=2, n_jobs=n) for n in (1, 2))
        np.testing.assert_allclose(one, two)
