"""What the methods refuse, and what they take in place of it."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.likelihoods import Categorical
from bbh.methods import FlowKind
from bbh.methods.flow_steps import MaskedRealNVP, Planar
from bbh.per_example import Sampling
from bbh.priors import Normal
from scenarios import mlp, over_methods


def loader() -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(8, 4), torch.arange(8) % 3), batch_size=4)


def test_an_unknown_word_does_not_choose_another_algorithm():
    with pytest.raises((TypeError, ValueError), match="locl"):
        bbh.methods.bayes_by_backprop(mlp(), Categorical(), sampling="locl")
    for flow, kind in ((FlowKind.PLANAR, Planar), (FlowKind.REAL_NVP, MaskedRealNVP)):
        weights = bbh.methods.multiplicative_normalizing_flows(
            mlp(), Categorical(), flow=flow
        ).weights
        steps = [
            module for module in weights.modules() if isinstance(module, Planar | MaskedRealNVP)
        ]
        assert {type(step) for step in steps} == {kind}


def test_draws_per_example_and_vmap_exclude_each_other():
    posterior = bbh.methods.bayes_by_backprop(
        mlp(), Categorical(), sampling=Sampling.LOCAL, execution=bbh.Vmap()
    ).train()
    inputs = torch.zeros(5, 4)
    with pytest.raises(ValueError, match=r"leave out execution=Vmap\(\)"):
        posterior(inputs, posterior.sample(2))
    # Prediction has one draw for all examples, where vmap is welcome.
    assert posterior.eval()(inputs, posterior.sample(2)).shape == (2, 5, 3)


@over_methods
def test_parts_in_the_wrong_place_are_refused(method):
    # The run-time type checker of the tests may be the first to say so, with a TypeError as well.
    for arguments in ((Normal(),), (Categorical,), (nn.CrossEntropyLoss(),), (Categorical(), 1.0)):
        with pytest.raises(TypeError, match=r"likelihood|prior"):
            method(mlp(), *arguments)


def test_a_module_is_named_not_passed():
    network = mlp()
    with pytest.raises(TypeError, match="bayesian"):
        bbh.methods.bayes_by_backprop(network, Categorical(), bayesian=network[2])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"schedule_each_step": True}, "needs a scheduler"),
        ({"num_samples": 0}, "num_samples=0"),
        ({"epochs": 0}, "epochs=0"),
    ],
)
def test_arguments_of_fit_that_would_do_nothing_are_refused(options, problem):
    posterior = bbh.methods.maximum_a_posteriori(mlp(), Categorical())
    with pytest.raises(ValueError, match=problem):
        bbh.fit(posterior, loader(), **{"epochs": 1, "progress": False, **options})


def test_beta_may_be_a_number():
    posterior = bbh.methods.maximum_a_posteriori(mlp(), Categorical())
    history = bbh.fit(posterior, loader(), epochs=1, beta=0.25, progress=False)
    assert history[0].beta == 0.25
    assert history[0].total == pytest.approx(
        history[0].nll + 0.25 / 8 * history[0].complexity, rel=1e-4
    )


def test_fit_names_what_was_passed_in_the_wrong_place():
    posterior = bbh.methods.maximum_a_posteriori(mlp(), Categorical())
    optimizer = torch.optim.Adam(posterior.parameters())
    with pytest.raises(TypeError, match="optimizer"):
        bbh.fit(posterior, loader(), epochs=1, optimizer=optimizer)
    with pytest.raises(TypeError, match="posterior"):
        bbh.fit(loader(), posterior, epochs=1)


def test_targets_that_no_coin_gives_are_refused():
    posterior = bbh.methods.maximum_a_posteriori(nn.Linear(4, 1), bbh.likelihoods.Bernoulli())
    batch = (torch.randn(3, 4), torch.tensor([[0.0], [1.0], [2.0]]))
    with pytest.raises(ValueError, match=r"from 0 to 2.*Categorical"):
        bbh.free_energy(posterior, batch, num_data=3)


def test_predictions_that_are_no_numbers_are_reported(caplog):
    posterior = bbh.methods.maximum_a_posteriori(mlp(), Categorical())
    inputs = torch.randn(5, 4)
    inputs[3, 0] = torch.nan
    bbh.predict(posterior, inputs)
    assert "1 of 5 predictions are not finite" in caplog.text
