"""fit: when it stops, early or because something went wrong."""

import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

import bbh
from scenarios import BatchNormNet, mlp
from training.small import (
    Categorical,
    assert_same_state,
    copied,
    dataset,
    fit,
    hypernet,
    point,
    sgd,
    worsening,
)


class TestEarlyStopping:
    def test_stops_and_restores_when_validation_only_worsens(self):
        network, wrong, right = worsening()
        posterior = point(network)
        history = fit(posterior, wrong, 20, validation=right, patience=3)
        assert history.best_epoch == 1
        assert len(history) == 4
        nlls = [record.validation["nll"] for record in history]
        assert nlls == sorted(nlls)
        only_one = point(network)
        fit(only_one, wrong, 1)
        assert_same_state(posterior.state_dict(), only_one.state_dict())
        assert bbh.evaluate(posterior, right) == history[0].validation

    def test_restores_the_best_of_a_rise_and_a_fall(self):
        network, _, right = worsening()
        posterior = point(network)

        def breaks_in_the_fourth_epoch(optimizer):
            return lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 if epoch < 3 else 1e5)

        options = {"optimizer": sgd(0.01), "scheduler": breaks_in_the_fourth_epoch}
        history = fit(posterior, right, 20, validation=right, patience=2, **options)
        assert history.best_epoch == 3
        assert len(history) == 5
        assert bbh.evaluate(posterior, right) == history[2].validation
        assert history[4].validation["nll"] > history[2].validation["nll"]

    def test_restores_batch_norm_statistics_too(self):
        inputs, targets = torch.randn(12, 1, 6, 6), torch.randint(0, 3, (12,))
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=6)
        posterior = point(BatchNormNet())
        history = fit(posterior, loader, 10, validation=loader, patience=2, optimizer=sgd(30.0))
        best = history[history.best_epoch - 1]
        assert bbh.evaluate(posterior, loader) == best.validation
        assert history.best_epoch < len(history)

    def test_the_last_state_stays_without_patience(self):
        network, wrong, right = worsening()
        first, second = point(network), point(network)
        history = fit(first, wrong, 4, validation=right)
        fit(second, wrong, 4)
        assert history.best_epoch is None
        assert len(history) == 4
        assert_same_state(first.state_dict(), second.state_dict())

    def test_the_best_state_is_restored_when_epochs_run_out(self):
        network, wrong, right = worsening()
        posterior = point(network)
        history = fit(posterior, wrong, 3, validation=right, patience=50)
        assert history.best_epoch == 1
        assert bbh.evaluate(posterior, right) == history[0].validation


class BrokenPrior(bbh.priors.ElementwisePrior):
    """Infinitely surprised by every weight."""

    def distribution(self, like):
        return torch.distributions.Normal(like.new_tensor(0.0), like.new_tensor(1.0))

    def log_prob(self, name, values):
        return values * -math.inf


class RootOfZero(nn.Module):
    """Finite outputs, and a gradient that is not."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.zero = nn.Parameter(torch.zeros(3))

    def forward(self, inputs):
        return self.layer(inputs) + self.zero.square().sqrt()


class TestDivergence:
    def good_and_bad(self, value=math.nan, shape=(4,)):
        good = torch.randn(5, *shape), torch.randint(0, 3, (5,))
        bad = torch.full((5, *shape), value), good[1]
        return good, bad

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    @pytest.mark.parametrize("make", [point, hypernet], ids=["map", "hypernet"])
    def test_likelihood(self, make, value):
        good, bad = self.good_and_bad(value)
        network = mlp()
        torch.manual_seed(3)
        posterior = make(network)
        torch.manual_seed(4)
        with pytest.raises(
            bbh.DivergedError, match=r"step 2: the nll is .*learning rate"
        ) as caught:
            fit(posterior, [good, bad, good], 3, num_data=5)
        assert caught.value.term == "nll"
        assert isinstance(caught.value, FloatingPointError)
        assert len(caught.value.history) == 0
        torch.manual_seed(3)
        twin = make(network)
        torch.manual_seed(4)
        fit(twin, [good], num_data=5)
        assert_same_state(posterior.state_dict(), twin.state_dict())

    @pytest.mark.parametrize("members", [1, 2])
    def test_batch_norm_keeps_its_statistics(self, members):
        """The failing forward pass has already written NaN into the running statistics."""
        good, bad = self.good_and_bad(shape=(1, 6, 6))
        torch.manual_seed(3)
        posterior = bbh.methods.deep_ensemble(BatchNormNet(), Categorical(), num_members=members)
        twin = bbh.methods.deep_ensemble(BatchNormNet(), Categorical(), num_members=members)
        twin.load_state_dict(posterior.state_dict())
        fit(twin, [good], num_data=5)
        with pytest.raises(bbh.DivergedError):
            fit(posterior, [good, bad], num_data=5)
        assert_same_state(posterior.state_dict(), twin.state_dict())

    def test_complexity(self):
        posterior = point(prior=BrokenPrior())
        before = copied(posterior)
        with pytest.raises(bbh.DivergedError, match="the complexity is") as caught:
            fit(posterior, DataLoader(dataset(), batch_size=4))
        assert caught.value.term == "complexity"
        assert_same_state(posterior.state_dict(), before)

    def test_complexity_of_a_broken_parameter(self):
        posterior = bbh.methods.bayes_by_backprop(nn.Linear(4, 3), Categorical())
        with torch.no_grad():
            next(iter(posterior.weights.log_scale.parameters()))[0] = -math.inf  # scale zero
        with pytest.raises(bbh.DivergedError, match="the complexity is inf"):
            fit(posterior, DataLoader(dataset(), batch_size=4))

    def test_gradient(self):
        posterior = point(RootOfZero())
        before = copied(posterior)
        with pytest.raises(bbh.DivergedError, match="step 1: the gradient_norm is nan") as caught:
            fit(posterior, DataLoader(dataset(), batch_size=4), gradient_clip=1.0)
        assert caught.value.term == "gradient_norm"
        assert_same_state(posterior.state_dict(), before)

    def test_auxiliary(self):
        posterior = hypernet(divergence=bbh.divergences.Adversarial(pretraining=1))
        with torch.no_grad():
            next(posterior.weights.helper.parameters()).fill_(math.nan)
        before = copied(posterior)
        with pytest.raises(bbh.DivergedError, match="auxiliary") as caught:
            fit(posterior, DataLoader(dataset(), batch_size=4))
        assert caught.value.term == "auxiliary"
        after = posterior.state_dict()
        assert all(torch.equal(after[n], v) or v.isnan().any() for n, v in before.items())

    def test_records_and_checkpoint_of_the_good_epochs_stay(self, tmp_path):
        class BreaksLater:
            epochs = 0

            def __iter__(self):
                self.epochs += 1
                inputs, targets = dataset()[:12]
                yield inputs * (math.nan if self.epochs == 3 else 1.0), targets

        posterior = point()
        with pytest.raises(bbh.DivergedError) as caught:
            fit(posterior, BreaksLater(), 5, num_data=12, checkpoint=tmp_path / "checkpoint")
        assert [record.epoch for record in caught.value.history] == [1, 2]
        stored = torch.load(tmp_path / "checkpoint", weights_only=True)
        assert_same_state(posterior.state_dict(), stored["posterior"])
