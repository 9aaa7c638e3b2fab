"""Posteriors in Lightning's Trainer: what it trains is what ``bbh.fit`` trains."""

import csv
import sys
from functools import partial

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.likelihoods import Categorical, Gaussian
from scenarios import METHODS, BatchNormNet, mlp

pl = pytest.importorskip(
    "lightning.pytorch", reason="no Lightning: pip install 'bayes-by-hypernet[lightning]'"
)
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint  # noqa: E402
from lightning.pytorch.demos.boring_classes import BoringModel  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from bbh.adapters import LightningPosterior, UncertaintyCallback  # noqa: E402

# Without steps before training: loaders draw random numbers before these in Lightning, and after
# them in ``fit``.
adversarial = partial(
    bbh.methods.bayes_by_hypernet,
    divergence=bbh.divergences.Adversarial(steps=2, pretraining=0),
    generator=bbh.generators.Sliced(hidden=(8, 8)),
)


def loader(number=50, batch_size=20, *, shuffle=False, shape=(4,)):
    inputs = torch.randn(number, *shape)
    targets = (inputs.flatten(1)[:, 0] > 0).long() + (inputs.flatten(1)[:, 1] > 0).long()
    return DataLoader(TensorDataset(inputs, targets), batch_size=batch_size, shuffle=shuffle)


def assert_same(first, second, **tolerance):
    """The two posteriors have the same weights, statistics and targets."""
    state = second.state_dict()
    for name, value in first.state_dict().items():
        torch.testing.assert_close(
            value, state[name], msg=lambda m, n=name: f"{n}: {m}", **tolerance
        )


def trainer(folder, **settings):
    chosen = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "default_root_dir": folder,
    }
    return pl.Trainer(**(chosen | settings))


def trained_both_ways(method, network, data, folder, validation=None):
    """The posterior as ``fit`` trains it with plain Adam, and as Lightning trains it."""
    posteriors = []
    for lightning in (False, True):
        torch.manual_seed(1)
        posterior = method(network(), Categorical())
        torch.manual_seed(2)
        if lightning:
            trainer(folder).fit(LightningPosterior(posterior), data, validation)
        else:
            # As Lightning has it: the schedules of the method, without the fused optimizer.
            defaults = posterior.weights.training_defaults
            from bbh.training.defaults import cooling

            steps = 2 * len(data)
            bbh.fit(
                posterior,
                data,
                epochs=2,
                optimizer=lambda p, rate=defaults.learning_rate: torch.optim.Adam(p, lr=rate),
                scheduler=partial(cooling, steps, defaults.cooling) if defaults.cooling else None,
                schedule_each_step=bool(defaults.cooling),
                compare=False,
                progress=False,
            )
        posteriors.append(posterior)
    return posteriors


@pytest.mark.parametrize("method", [*METHODS.values(), adversarial], ids=[*METHODS, "adversarial"])
def test_trains_what_fit_trains(method, tmp_path):
    by_fit, by_lightning = trained_both_ways(method, mlp, loader(), tmp_path)
    assert_same(by_fit, by_lightning, rtol=1e-4, atol=1e-5)


def test_critics_are_trained_before_the_first_step_and_more_often(tmp_path):
    steps = []

    class Look(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            state = trainer.optimizers[0].state
            generator = list(pl_module.posterior.weights.generator.parameters())
            known = {id(one) for one in generator}
            critic = [one for one in pl_module.parameters() if id(one) not in known]
            parts = (critic, generator)
            taken = [{int(state[one]["step"]) for one in p if one in state} for p in parts]
            steps.append(taken)

    divergence = bbh.divergences.Adversarial(steps=2, pretraining=5)
    posterior = bbh.methods.bayes_by_hypernet(nn.Linear(4, 3), Categorical(), divergence=divergence)
    module = LightningPosterior(posterior)
    assert not module.automatic_optimization
    trainer(tmp_path, max_epochs=1, callbacks=Look()).fit(module, loader(60, 20))
    assert steps == [[{5}, set()], [{7}, {1}], [{9}, {2}]]


@pytest.mark.parametrize("method", ["bayes_by_backprop", "maximum_a_posteriori"])
def test_validation_leaves_batch_norm_in_training_mode(method, tmp_path):
    """Lightning goes back to training without telling the template of the network."""
    data = loader(shape=(1, 6, 6))
    method = METHODS[method]
    validation = data if method.func is bbh.methods.maximum_a_posteriori else None
    by_fit, by_lightning = trained_both_ways(method, BatchNormNet, data, tmp_path, validation)
    assert_same(by_fit, by_lightning, rtol=1e-4, atol=1e-5)
    assert bool(by_lightning.reference) == by_lightning.needs_reference()


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_metrics_are_those_of_evaluate(stage, tmp_path):
    """Over the whole data set, not means over batches of different sizes."""
    posterior = bbh.methods.maximum_a_posteriori(mlp(), Categorical())
    data = loader(50, 20)
    run = trainer(tmp_path)
    (found,) = getattr(run, stage)(LightningPosterior(posterior), data, verbose=False)
    expected = bbh.evaluate(posterior, data)
    prefix = "val" if stage == "validate" else "test"
    assert found == pytest.approx({f"{prefix}_{n}": value for n, value in expected.items()})


def test_several_validation_loaders(tmp_path):
    posterior = bbh.methods.maximum_a_posteriori(mlp(), Categorical())
    both = [loader(30), loader(40)]
    found = trainer(tmp_path).validate(LightningPosterior(posterior), both, verbose=False)
    together = {name: value for one in found for name, value in one.items()}
    for number, data in enumerate(both):
        assert together[f"val_nll/{number}"] == pytest.approx(bbh.evaluate(posterior, data)["nll"])


def test_predictions_share_their_draws(tmp_path):
    posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
    inputs = torch.randn(10, 4)
    twice = DataLoader(TensorDataset(inputs.repeat(2, 1)), batch_size=10)
    module = LightningPosterior(posterior, prediction_samples=7)
    first, second = trainer(tmp_path).predict(module, twice)
    assert first.num_samples == 7
    torch.testing.assert_close(first.mean, second.mean)
    assert bbh.predictive.Predictive.joined([first, second]).labels.shape == (20,)


def test_draws_too_large_to_keep_are_the_same_too(tmp_path, monkeypatch):
    monkeypatch.setattr("bbh.adapters.evaluating.MEMORY_LIMIT", 0)
    test_predictions_share_their_draws(tmp_path)


def test_no_warning_before_there_are_inputs_for_batch_norm(tmp_path, caplog):
    """Lightning validates before training, and here also in the middle of the first epoch."""
    posterior = METHODS["bayes_by_backprop"](BatchNormNet2(), Categorical())
    run = trainer(tmp_path, max_epochs=1, val_check_interval=0.5, callbacks=UncertaintyCallback())
    run.fit(LightningPosterior(posterior), loader(80, 20), loader())
    assert [one for one in caplog.records if one.name == "bbh"] == []
    assert "val_nll" in run.callback_metrics


def test_targets_in_their_own_units(tmp_path):
    inputs = torch.randn(40, 3)
    targets = 1000 + 50 * inputs.sum(1, keepdim=True)
    data = DataLoader(TensorDataset(inputs, targets), batch_size=20)
    posterior = bbh.methods.bayes_by_backprop(nn.Linear(3, 1), Gaussian())
    run = trainer(tmp_path, callbacks=UncertaintyCallback())
    run.fit(LightningPosterior(posterior), data, data)
    torch.testing.assert_close(posterior.likelihood.target_loc, targets.mean(0))
    expected = {"val_nll", "val_error", "val_crps", "val_total_std", "val_epistemic_std"}
    assert expected <= run.callback_metrics.keys()


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    """With shuffled data, weight draws and schedules, on a CPU."""
    data, validation = loader(shuffle=True), loader()
    keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1, every_n_epochs=1)

    def module():
        torch.manual_seed(3)
        return LightningPosterior(METHODS["bayes_by_hypernet"](BatchNormNet2(), Categorical()))

    whole = module()
    settings = {"max_epochs": 4, "enable_checkpointing": True, "callbacks": keep}
    trainer(tmp_path, **settings).fit(whole, data, validation)
    torch.manual_seed(4)
    resumed = module()
    torch.manual_seed(5)
    run = trainer(tmp_path, **settings)
    run.fit(resumed, data, validation, ckpt_path=tmp_path / "epoch=1.ckpt")
    assert_same(whole.posterior, resumed.posterior, rtol=0, atol=0)


def BatchNormNet2():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def test_a_checkpoint_loads_for_prediction(tmp_path):
    data = loader()
    posterior = METHODS["bayes_by_hypernet"](BatchNormNet2(), Categorical())
    run = trainer(tmp_path)
    run.fit(LightningPosterior(posterior), data)
    run.save_checkpoint(tmp_path / "last.ckpt")
    state = torch.get_rng_state()
    other = METHODS["bayes_by_hypernet"](BatchNormNet2(), Categorical())
    torch.set_rng_state(state)
    loaded = LightningPosterior.load_from_checkpoint(tmp_path / "last.ckpt", posterior=other)
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(loaded.posterior, posterior, rtol=0, atol=0)


def test_early_stopping_and_loggers(tmp_path):
    """A step size of zero: the second epoch is no better than the first."""
    posterior = bbh.methods.maximum_a_posteriori(mlp(), Categorical())
    data = loader()
    run = trainer(
        tmp_path,
        max_epochs=20,
        logger=CSVLogger(tmp_path, name="log", version="0"),
        callbacks=[EarlyStopping("val_nll", patience=2), UncertaintyCallback()],
    )
    run.fit(LightningPosterior(posterior, learning_rate=1e-12), data, data)
    assert run.current_epoch == 3
    with (tmp_path / "log" / "0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    logged = [float(row["val_nll"]) for row in rows if row["val_nll"]]
    assert logged == pytest.approx([bbh.evaluate(posterior, data)["nll"]] * 3)
    assert {"train_nll", "train_complexity", "train_total", "val_ece", "val_entropy"} <= set(
        rows[0]
    )


def test_annealing_follows_epochs(tmp_path):
    seen = []

    def beta(epoch):
        seen.append(epoch)
        return 0.5

    posterior = bbh.methods.maximum_a_posteriori(mlp(), Categorical())
    module = LightningPosterior(posterior, beta=beta, temperature=0.1)
    run = trainer(tmp_path)
    run.fit(module, loader(60, 20))
    assert seen == pytest.approx([0, 1 / 3, 2 / 3, 1, 4 / 3, 5 / 3])
    terms = {name: float(value) for name, value in run.callback_metrics.items()}
    complexity = 0.1 * 0.5 / 60 * terms["train_complexity"]
    assert terms["train_total"] == pytest.approx(terms["train_nll"] + complexity, rel=1e-5)


def test_default_annealing_of_bayes_by_hypernet(tmp_path):
    """β rises over the first 30 % of the epochs, whether epochs or steps are limited."""
    for limits in ({"max_epochs": 10}, {"max_epochs": -1, "max_steps": 10}):
        module = LightningPosterior(METHODS["bayes_by_hypernet"](mlp(), Categorical()))
        run = trainer(tmp_path, limit_train_batches=1, **limits)
        run.fit(module, loader(60, 20))
        assert module._schedule(1.5) == pytest.approx(0.5)
        assert module._schedule(3.0) == 1
        assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(3e-5)


def test_accumulation_and_clipping_are_lightnings(tmp_path):
    module = LightningPosterior(METHODS["bayes_by_backprop"](mlp(), Categorical()))
    run = trainer(tmp_path, accumulate_grad_batches=3, gradient_clip_val=1.0)
    run.fit(module, loader(60, 20))
    assert run.global_step == 2


def test_swag_collects_before_validation(tmp_path):
    collected = []

    class Look(Callback):
        def on_validation_start(self, trainer, pl_module):
            collected.append(int(pl_module.posterior.weights.num_collected))

    posterior = bbh.methods.stochastic_weight_averaging(
        nn.Linear(4, 3), Categorical(), bayesian=["weight", "bias"]
    )
    run = trainer(tmp_path, max_epochs=3, callbacks=Look(), num_sanity_val_steps=0)
    run.fit(LightningPosterior(posterior), loader(), loader())
    assert collected == [1, 2, 3]


def test_outliers(tmp_path):
    posterior = bbh.methods.deep_ensemble(mlp(), Categorical(), num_members=3)
    data = loader()
    outside = [(3 * torch.randn(20, 4), torch.zeros(20)), (3 * torch.randn(7, 4), torch.zeros(7))]
    run = trainer(tmp_path, callbacks=UncertaintyCallback(outside))
    (found,) = run.test(LightningPosterior(posterior), data, verbose=False)
    inside, far = (bbh.predict(posterior, one) for one in (data, iter(outside)))
    for name in ("entropy", "mutual_information"):
        scores = [getattr(one, name) for one in (inside, far)]
        assert found[f"test_{name}"] == pytest.approx(float(scores[0].mean()), rel=1e-5)
        labels = [0] * len(scores[0]) + [1] * len(scores[1])
        expected = roc_auc_score(labels, torch.cat(scores))
        assert found[f"test_outlier_auroc_{name}"] == pytest.approx(expected)


class Stream:
    """Batches from somewhere, without a length."""

    def __iter__(self):
        return iter(loader())


class TestErrors:
    def test_other_things_than_posteriors(self):
        with pytest.raises(TypeError, match="posterior"):
            LightningPosterior(mlp())

    def test_settings(self):
        posterior = METHODS["bayes_by_backprop"](mlp(), Categorical())
        for wrong in ({"temperature": -1}, {"num_samples": 0}, {"num_data": 0}, {"beta": -1.0}):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                LightningPosterior(posterior, **wrong)

    def test_unknown_size_of_the_data(self, tmp_path):
        module = LightningPosterior(METHODS["bayes_by_backprop"](mlp(), Categorical()))
        stream = Stream()
        with pytest.raises(ValueError, match="num_data="):
            trainer(tmp_path).fit(module, stream)
        module.num_data = 50
        trainer(tmp_path).fit(module, stream)

    def test_unknown_number_of_epochs(self, tmp_path):
        module = LightningPosterior(METHODS["bayes_by_hypernet"](mlp(), Categorical()))
        with pytest.raises(ValueError, match="max_epochs="):
            trainer(tmp_path, max_epochs=-1, max_time={"seconds": 1}).fit(module, loader())

    def test_inputs_that_are_not_finite(self, tmp_path):
        posterior = METHODS["bayes_by_backprop"](mlp(), Categorical())
        before = {name: value.clone() for name, value in posterior.state_dict().items()}
        data = TensorDataset(torch.full((4, 4), torch.nan), torch.zeros(4, dtype=torch.long))
        with pytest.raises(bbh.DivergedError, match="the nll is nan"):
            trainer(tmp_path).fit(LightningPosterior(posterior), DataLoader(data))
        for name, value in posterior.state_dict().items():
            assert torch.equal(value, before[name])

    def test_predictions_outside_of_a_trainer(self):
        module = LightningPosterior(METHODS["bayes_by_backprop"](mlp(), Categorical()))
        with pytest.raises(RuntimeError, match=r"bbh\.predict"):
            module.predictive(torch.randn(2, 4))
        assert module(torch.randn(2, 4), num_samples=3).num_samples == 3

    def test_callback_of_other_modules(self, tmp_path):
        run = trainer(tmp_path, callbacks=UncertaintyCallback())
        other = BoringModel()
        with pytest.raises(TypeError, match="LightningPosterior"):
            run.validate(other, verbose=False)

    def test_lightning_is_not_installed(self, monkeypatch):
        for name in [one for one in sys.modules if one.startswith("bbh.adapters.lightning")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
        with pytest.raises(ImportError, match=r"pip install 'bayes-by-hypernet\[lightning\]'"):
            _ = bbh.adapters.LightningPosterior
