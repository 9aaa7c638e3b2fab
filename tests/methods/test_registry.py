"""Methods of one's own: what a registration takes, and what it refuses."""

import pytest
import torch
from torch import nn

import bbh
from bbh.methods import bayes_by_backprop, register, registered
from bbh.priors import Normal


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr("bbh.methods.registry._METHODS", registered())


def test_a_method_may_be_made_of_another(tmp_path):
    @register
    def wide_backprop(
        network, likelihood, prior=Normal(1.0), *, width=0.1, forward=None, execution=None
    ):
        """Backprop that starts wide.

        Args:
            width: Initial standard deviation.
        """
        return bayes_by_backprop(
            network,
            likelihood,
            prior,
            initial_scale=width,
            forward=forward,
            execution=execution,
        )

    network = nn.Linear(3, 2)
    posterior = wide_backprop(network, bbh.likelihoods.Categorical(), width=0.3)
    assert posterior.recipe.method == "wide_backprop"
    assert posterior.recipe.arguments == {"width": 0.3}
    bbh.save(posterior, tmp_path / "file")
    loaded = bbh.load(tmp_path / "file", network)
    predictions = []
    for one in (posterior, loaded):
        torch.manual_seed(1)
        predictions.append(bbh.predict(one, torch.ones(2, 3), 4).mean)
    assert torch.equal(*predictions)
    # Only arguments that it has are described.
    assert "bayesian:" not in wide_backprop.__doc__
    assert "likelihood: How targets arise" in wide_backprop.__doc__


def test_what_could_not_be_loaded_is_refused():
    with pytest.raises(TypeError, match="tiny lacks the arguments execution, forward"):

        @register
        def tiny(network, likelihood, prior):
            """Nothing."""

    with pytest.raises(TypeError, match="must name all its arguments"):

        @register
        def loose(network, likelihood, prior, *others, forward=None, execution=None):
            """Nothing."""


def test_arguments_that_are_passed_on_are_stored_by_their_names(tmp_path):
    @register
    def passing(network, likelihood, prior=Normal(1.0), *, forward=None, execution=None, **others):
        """Passes everything on."""
        return bayes_by_backprop(
            network, likelihood, prior, forward=forward, execution=execution, **others
        )

    network = nn.Linear(3, 2)
    posterior = passing(network, bbh.likelihoods.Categorical(), initial_scale=0.3)
    assert posterior.recipe.arguments == {"initial_scale": 0.3}
    bbh.save(posterior, tmp_path / "file")
    loaded = bbh.load(tmp_path / "file", network)
    assert loaded.recipe.arguments == {"initial_scale": 0.3}
    with pytest.raises(TypeError, match="unexpected keyword argument 'width'"):
        passing(network, bbh.likelihoods.Categorical(), width=0.3)


def test_a_name_that_is_taken_is_refused():
    def maximum_a_posteriori(network, likelihood, prior, forward=None, execution=None):
        """Another one."""

    with pytest.raises(ValueError, match=r"already, in bbh\.methods\.point"):
        register(maximum_a_posteriori)


def test_a_posterior_without_a_method_cannot_be_saved(tmp_path):
    network = nn.Linear(3, 2)
    network, values, points = bbh.network.divide(network, None)
    posterior = bbh.methods.assemble(
        network,
        bbh.methods.MeanFieldNormal(values),
        Normal(1.0),
        bbh.likelihoods.Categorical(),
        points=points,
        forward=None,
        execution=None,
        chosen={},
    )
    with pytest.raises(ValueError, match="assembled by hand"):
        bbh.save(posterior, tmp_path / "file")
