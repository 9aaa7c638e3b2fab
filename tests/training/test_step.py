"""One step: fit, a loop of one's own around it, and a loop around the objective are the same."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import bbh
from scenarios import METHODS, BatchNormNet, mlp, over_methods
from training.small import Categorical, assert_same_state, copied, dataset

EPOCHS = 3


def batches():
    return DataLoader(dataset(), batch_size=5)


@over_methods
def test_a_loop_of_ones_own_is_what_fit_does(method):
    def train(loop):
        torch.manual_seed(4)
        posterior = method(mlp(), Categorical())
        loop(posterior)
        return posterior.state_dict()

    def adam(parameters):
        return torch.optim.Adam(parameters, lr=0.01, fused=True)

    def by_fit(posterior):
        bbh.fit(
            posterior,
            batches(),
            epochs=EPOCHS,
            optimizer=adam,
            gradient_clip=1.0,
            temperature=0.5,
            beta=1.0,
            progress=False,
        )

    def by_step(posterior):
        step = bbh.TrainingStep(
            posterior,
            adam(posterior.parameters()),
            num_data=12,
            gradient_clip=1.0,
            temperature=0.5,
        )
        for _ in range(EPOCHS):
            for batch in batches():
                step(batch)
            posterior.weights.end_epoch()
        assert step.count == EPOCHS * 3

    def by_hand(posterior):
        optimizer = adam(posterior.train().parameters())
        for _ in range(EPOCHS):
            for batch in batches():
                optimizer.zero_grad()
                energy = bbh.free_energy(posterior, batch, num_data=12, temperature=0.5)
                energy.total.backward()
                nn.utils.clip_grad_norm_(posterior.parameters(), 1.0)
                optimizer.step()
            posterior.weights.end_epoch()

    whole = train(by_fit)
    assert_same_state(whole, train(by_step))
    for name, value in train(by_hand).items():
        torch.testing.assert_close(value, whole[name])


def test_terms_are_those_of_the_objective():
    posterior = METHODS["bayes_by_hypernet"](mlp(), Categorical())
    batch = next(iter(batches()))
    torch.manual_seed(1)
    energy = bbh.free_energy(posterior, batch, num_data=12, beta=0.5, temperature=None)
    step = bbh.TrainingStep(posterior, torch.optim.SGD(posterior.parameters(), 0.1), num_data=12)
    torch.manual_seed(1)
    terms = step(batch, beta=0.5)
    for name in ("total", "nll", "complexity", "auxiliary"):
        assert terms[name] == pytest.approx(getattr(energy, name).item(), rel=1e-6)
    assert terms["gradient_norm"] > 0


def test_critics_take_their_own_steps():
    critic = bbh.divergences.Adversarial(hidden=(8,), steps=3, pretraining=2)
    posterior = METHODS["bayes_by_hypernet"](mlp(), Categorical(), divergence=critic)
    optimizer, taken = torch.optim.SGD(posterior.parameters(), 0.1), []
    optimizer.register_step_post_hook(lambda *_: taken.append(1))
    step = bbh.TrainingStep(posterior, optimizer, num_data=12)
    step.pretrain()
    assert len(taken) == 2
    step(next(iter(batches())))
    assert len(taken) == 2 + 3


def test_a_failed_step_changes_nothing():
    posterior = METHODS["maximum_a_posteriori"](BatchNormNet(), Categorical())
    step = bbh.TrainingStep(posterior, torch.optim.Adam(posterior.parameters()), num_data=12)
    targets = torch.arange(4) % 3
    step((torch.randn(4, 1, 6, 6), targets))
    before = copied(posterior)
    with pytest.raises(bbh.DivergedError, match="step 2: the nll is nan"):
        step((torch.full((4, 1, 6, 6), torch.nan), targets))
    assert_same_state(before, posterior.state_dict())
    assert step.count == 1


@pytest.mark.parametrize("steps_before", [0, 2], ids=["first step", "later step"])
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD, torch.optim.Rprop])
def test_a_failed_step_undoes_the_critics_steps_and_random_numbers(make, steps_before):
    """The critic has taken four steps of its own before the likelihood turns out to be NaN."""
    critic = bbh.divergences.Adversarial(hidden=(8,), pretraining=0)
    posterior = METHODS["bayes_by_hypernet"](mlp(), Categorical(), divergence=critic)
    optimizer = make(posterior.parameters(), lr=0.1)
    step = bbh.TrainingStep(posterior, optimizer, num_data=12)
    inputs, targets = next(iter(batches()))
    for _ in range(steps_before):
        step((inputs, targets))
    before, states = copied(posterior), copy.deepcopy(optimizer.state_dict())
    random = torch.get_rng_state()
    with pytest.raises(bbh.DivergedError, match="the nll is nan"):
        step((inputs * torch.nan, targets))
    assert_same_state(before, posterior.state_dict())
    assert_equal(states, optimizer.state_dict())
    assert torch.equal(torch.get_rng_state(), random)
    step((inputs, targets))  # and training can go on


def assert_equal(first, second):
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_equal(first[key], second[key])
    elif isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, list):
        for one, other in zip(first, second, strict=True):
            assert_equal(one, other)
    else:
        assert first == second


@pytest.mark.parametrize("rate", [1e30, 1e38, 3e38])
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD])
def test_an_update_that_would_overflow_is_not_made(make, rate):
    posterior = METHODS["bayes_by_backprop"](mlp(), Categorical())
    step = bbh.TrainingStep(posterior, make(posterior.parameters(), lr=rate), num_data=12)
    before = copied(posterior)
    with pytest.raises(bbh.DivergedError, match=r"the update is inf.*lower learning rate"):
        step(next(iter(batches())))
    assert_same_state(before, posterior.state_dict())


def test_large_rates_that_weights_can_take_are_the_users_choice():
    posterior = METHODS["maximum_a_posteriori"](mlp(), Categorical())
    step = bbh.TrainingStep(posterior, torch.optim.SGD(posterior.parameters(), 1e9), num_data=12)
    assert "update" not in step(next(iter(batches())))


def test_an_optimizer_that_breaks_the_weights_is_noticed_in_the_last_step():
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(torch.inf)

    posterior = METHODS["maximum_a_posteriori"](mlp(), Categorical())
    whole = DataLoader(dataset(), batch_size=12)
    with pytest.raises(bbh.DivergedError, match=r"parameter_norm is inf\. The weights are lost"):
        bbh.fit(posterior, whole, epochs=1, optimizer=Broken, progress=False)


@pytest.mark.parametrize("method", ["maximum_a_posteriori", "deep_ensemble", "bayes_by_backprop"])
def test_a_step_that_makes_statistics_infinite_fails_and_changes_nothing(method):
    posterior = METHODS[method](BatchNormNet(), Categorical())
    step = bbh.TrainingStep(posterior, torch.optim.Adam(posterior.parameters()), num_data=12)
    inputs, targets = torch.randn(4, 1, 6, 6), torch.arange(4) % 3
    assert "batch_norm_statistics" not in step((inputs, targets))
    before = copied(posterior)
    inputs[0, 0, 0, 0] = 1e20  # its square is more than single precision holds
    with pytest.raises(bbh.DivergedError, match="step 2: the batch_norm_statistics is") as caught:
        step((inputs, targets))
    assert caught.value.term == "batch_norm_statistics"
    assert_same_state(before, posterior.state_dict())


def test_buffers_that_are_infinite_by_design_are_no_error():
    class Masked(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("mask", torch.tensor([0.0, 0.0, -torch.inf]))

        def forward(self, inputs):
            return super().forward(inputs) + self.mask

    posterior = METHODS["maximum_a_posteriori"](Masked(), Categorical())
    step = bbh.TrainingStep(posterior, torch.optim.Adam(posterior.parameters()), num_data=12)
    step((torch.randn(4, 4), torch.arange(4) % 2))


def test_statistics_of_a_posterior_that_was_changed_to_double_are_undone_too():
    posterior = METHODS["maximum_a_posteriori"](BatchNormNet(), Categorical())
    step = bbh.TrainingStep(posterior, torch.optim.Adam(posterior.parameters()), num_data=12)
    posterior.double()
    before = copied(posterior)
    with pytest.raises(bbh.DivergedError):
        step((torch.full((4, 1, 6, 6), torch.nan).double(), torch.arange(4) % 3))
    assert_same_state(before, posterior.state_dict())


def test_it_trains_also_after_something_else_has_evaluated():
    posterior = METHODS["maximum_a_posteriori"](BatchNormNet(), Categorical())
    step = bbh.TrainingStep(posterior, torch.optim.Adam(posterior.parameters()), num_data=12)
    posterior.eval()
    step((torch.randn(4, 1, 6, 6), torch.arange(4) % 3))
    assert posterior.training
    assert posterior.constants()["norm.num_batches_tracked"] == 1


def test_the_norm_is_that_of_what_is_trained():
    posterior = METHODS["maximum_a_posteriori"](mlp(), Categorical())
    first, *_ = posterior.parameters()
    step = bbh.TrainingStep(posterior, torch.optim.SGD([first], lr=0.0), num_data=12)
    norms = {step(next(iter(batches())))["gradient_norm"] for _ in range(3)}
    assert len(norms) == 1


def test_another_optimizer_may_follow_one_that_was_not_closed():
    posterior = bbh.methods.bayes_by_hypernet(nn.Linear(200, 60), Categorical())
    (large, *_) = posterior.weights.factored_parameters()
    batch = torch.randn(5, 200), torch.arange(5) % 60
    first = bbh.training.make_adam(posterior.weights, posterior.parameters(), lr=1e-3)
    bbh.TrainingStep(posterior, first, num_data=5)(batch)
    second = torch.optim.Adam(posterior.parameters(), lr=1e-3)
    before = large.detach().clone()
    bbh.TrainingStep(posterior, second, num_data=5)(batch)
    assert not torch.equal(large, before)


def test_an_optimizer_of_the_network_trains_nothing_and_is_refused():
    network = mlp()
    posterior = METHODS["maximum_a_posteriori"](network, Categorical())
    with pytest.raises(ValueError, match="no parameter of the posterior"):
        bbh.TrainingStep(posterior, torch.optim.Adam(network.parameters()), num_data=12)
