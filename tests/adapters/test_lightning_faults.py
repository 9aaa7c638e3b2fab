"""Lightning's Trainer: steps that fail change nothing, and checkpoints are what was written."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.likelihoods import Categorical
from bbh.training import CheckpointError
from scenarios import mlp

pl = pytest.importorskip(
    "lightning.pytorch", reason="no Lightning: pip install 'bayes-by-hypernet[lightning]'"
)
from bbh.adapters import LightningPosterior  # noqa: E402

backprop = bbh.methods.bayes_by_backprop


def loader(inputs=None):
    inputs = torch.randn(20, 4) if inputs is None else inputs
    return DataLoader(TensorDataset(inputs, torch.arange(len(inputs)) % 3), batch_size=10)


def trainer(folder, epochs=1):
    return pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )


class LostGradient(torch.autograd.Function):
    """Passes values on, and loses their gradient."""

    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * math.nan


class Lost(nn.Linear):
    def forward(self, inputs):
        return LostGradient.apply(super().forward(inputs))


def with_batch_norm():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


class TestStepsThatFail:
    @pytest.mark.parametrize(
        ("network", "large", "term"),
        [
            (with_batch_norm, 1e20, "batch_norm_statistics"),
            (with_batch_norm, math.nan, "nll"),
            (partial(Lost, 4, 3), 0.0, "gradient_norm"),
        ],
        ids=["statistics", "terms", "gradient"],
    )
    @pytest.mark.parametrize("helpers", [False, True], ids=["plain", "critic"])
    def test_everything_is_as_before(self, network, large, term, helpers, tmp_path):
        inputs = torch.randn(10, 4)
        inputs[3, 2] += large
        critic = bbh.divergences.Adversarial(steps=2, pretraining=0)
        method = partial(bbh.methods.bayes_by_hypernet, divergence=critic) if helpers else backprop
        posterior = method(network(), Categorical())
        before = copy.deepcopy(posterior.state_dict())
        with pytest.raises(bbh.DivergedError, match=f"the {term} is"):
            trainer(tmp_path).fit(LightningPosterior(posterior), loader(inputs))
        for name, value in posterior.state_dict().items():
            assert torch.equal(value, before[name]), name

    def test_an_update_that_is_not_finite_ends_training(self, tmp_path):
        class Overflowing(LightningPosterior):
            def configure_optimizers(self):
                return torch.optim.SGD(self.posterior.parameters(), lr=3e38)

        data = loader(100 * torch.randn(10, 4))
        with pytest.raises(bbh.DivergedError, match="the parameter_norm is"):
            trainer(tmp_path).fit(Overflowing(backprop(mlp(), Categorical())), data)


class TestCheckpoints:
    @pytest.fixture
    def path(self, tmp_path):
        run = trainer(tmp_path)
        run.fit(self.module(), loader())
        run.save_checkpoint(tmp_path / "last.ckpt")
        return tmp_path / "last.ckpt"

    def module(self, prior=1.0, **settings):
        prior = bbh.priors.Normal(prior)
        return LightningPosterior(backprop(mlp(), Categorical(), prior=prior), **settings)

    @pytest.mark.parametrize(
        ("settings", "named"),
        [
            ({"temperature": 0.1}, "temperature=1.0, not 0.1"),
            ({"learning_rate": 0.5}, "optimizer.lr=0.001, not 0.5"),
            ({"beta": 0.3}, "beta=the method's own, not 0.3"),
            ({"num_data": 7}, "num_data=20, not 7"),
            ({"num_samples": 7}, "num_samples=None, not 7"),
            ({"prior": 9.0}, "prior.scale=1.0, not 9.0"),
        ],
    )
    def test_other_settings_are_refused_by_their_name(self, settings, named, path, tmp_path):
        with pytest.raises(CheckpointError, match=rf"last.ckpt was made with .*{named}"):
            trainer(tmp_path, 2).fit(self.module(**settings), loader(), ckpt_path=path)

    def test_more_epochs_are_not(self, path, tmp_path):
        run = trainer(tmp_path, 2)
        run.fit(self.module(), loader(), ckpt_path=path)
        assert run.current_epoch == 2

    @pytest.mark.parametrize("part", ["state_dict", "optimizer_states", "bbh_random_state"])
    def test_what_was_changed_is_refused(self, part, path, tmp_path):
        checkpoint = torch.load(path, weights_only=True)
        found = _tensors(checkpoint[part])[-1]
        found.view(-1).view(torch.uint8)[0] ^= 1
        torch.save(checkpoint, path)
        with pytest.raises(CheckpointError, match=r"last.ckpt was changed after it was written"):
            trainer(tmp_path, 2).fit(self.module(), loader(), ckpt_path=path)
        posterior = backprop(mlp(), Categorical())
        with pytest.raises(CheckpointError, match="was changed"):
            LightningPosterior.load_from_checkpoint(path, posterior=posterior)

    def test_of_another_module(self, path, tmp_path):
        checkpoint = torch.load(path, weights_only=True)
        del checkpoint["bbh_random_state"]
        torch.save(checkpoint, path)
        with pytest.raises(CheckpointError, match="not written by a LightningPosterior"):
            trainer(tmp_path, 2).fit(self.module(), loader(), ckpt_path=path)


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    known = (part for part in parts if isinstance(part, torch.Tensor | dict | list | tuple))
    return [one for part in known for one in _tensors(part)]
