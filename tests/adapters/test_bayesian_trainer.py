"""The Trainer of Hugging Face with a posterior in place of a model."""

import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import bbh
from adapters.hugging_face import bert, distil_bert, examples, sentences, transformers
from bbh.adapters import BayesianTrainer
from bbh.likelihoods import Categorical, Gaussian
from scenarios import METHODS

pytest.importorskip("accelerate", reason="no accelerate: pip install accelerate")


def arguments(folder, **settings):
    chosen = {
        "num_train_epochs": 2,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 7,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "max_grad_norm": 0.0,
        "dataloader_pin_memory": False,
        "logging_strategy": "no",
    }
    return transformers.TrainingArguments(str(folder), **(chosen | settings))


def assert_same(first, second, **tolerance):
    state = second.state_dict()
    for name, value in first.state_dict().items():
        torch.testing.assert_close(value, state[name], **tolerance)


def in_order(trainer):
    """The Trainer shuffles by a generator of its own; here examples keep their order."""
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(
        trainer.train_dataset
    )
    return trainer


@pytest.mark.parametrize(
    "method",
    [
        "maximum_a_posteriori",
        pytest.param("bayes_by_backprop", marks=pytest.mark.slow),
        pytest.param("mixture", marks=pytest.mark.slow),
    ],
)
def test_trains_what_fit_trains(method, tmp_path):
    """With the same optimizer, draws and order, weights are the same: N and β are right."""
    data = examples(sentences(24))
    network = distil_bert()
    posteriors = []
    for by_trainer in (False, True):
        torch.manual_seed(1)
        posterior = METHODS[method](network, Categorical())
        if by_trainer:
            settings = {"lr_scheduler_type": "constant", "seed": 2}
            trainer = BayesianTrainer(
                posterior,
                arguments(tmp_path, **settings),
                train_dataset=data,
                beta=bbh.Linear(0, 1),
            )
            in_order(trainer).train()
        else:
            transformers.set_seed(2)
            bbh.fit(
                posterior,
                DataLoader(data, batch_size=8),
                epochs=2,
                optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0),
                beta=bbh.Linear(0, 1),
                compare=False,
                progress=False,
            )
        posteriors.append(posterior)
    if method == "maximum_a_posteriori":  # one that draws nothing, whoever else draws
        assert_same(*posteriors, rtol=1e-3, atol=1e-4)
    first, second = (bbh.evaluate(one, [sentences(40)])["nll"] for one in posteriors)
    assert first == pytest.approx(second, abs=0.1)


def test_evaluates_averaged_predictions(tmp_path):
    posterior = bbh.methods.deep_ensemble(bert(), Categorical(), num_members=3)
    data = sentences(17)
    seen = []

    def compute_metrics(given):
        seen.append(given)
        return {"accuracy": float((given.predictions.argmax(-1) == given.label_ids).mean())}

    trainer = BayesianTrainer(
        posterior, arguments(tmp_path), eval_dataset=examples(data), compute_metrics=compute_metrics
    )
    found = trainer.evaluate()
    expected = bbh.evaluate(posterior, [data])
    for name, value in expected.items():
        assert found[f"eval_{name}"] == pytest.approx(value, rel=1e-4)
    assert found["eval_accuracy"] == pytest.approx(1 - expected["error"] / 100)
    mean = bbh.predict(posterior, data).mean
    np.testing.assert_allclose(torch.tensor(seen[0].predictions).softmax(-1), mean, rtol=1e-4)
    predicted = trainer.predict(examples(data))
    np.testing.assert_allclose(np.exp(predicted.predictions), mean, rtol=1e-4)


def test_default_annealing(tmp_path):
    """β rises over the first 30 % of the steps for Bayes by Hypernet."""
    posterior = METHODS["bayes_by_hypernet"](bert(), Categorical())
    trainer = BayesianTrainer(posterior, arguments(tmp_path), train_dataset=examples(sentences(8)))
    trainer.state.max_steps = 100
    found = []
    for step in (0, 15, 30, 60):
        trainer.state.global_step = step
        found.append(trainer._beta_now())
    assert found == pytest.approx([0, 0.5, 1, 1])


@pytest.mark.slow
def test_regression_with_checkpoints_and_accumulation(tmp_path):
    data = sentences(20)
    data["labels"] = 500 + 20 * torch.randn(20, 1)
    data["weights"] = torch.ones(20)
    posterior = bbh.methods.bayes_by_backprop(bert(num_labels=1), Gaussian())
    settings = {
        "save_strategy": "epoch",
        "eval_strategy": "epoch",
        "gradient_accumulation_steps": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_nll",
        "remove_unused_columns": False,
    }
    trainer = BayesianTrainer(
        posterior,
        arguments(tmp_path, **settings),
        train_dataset=examples(data),
        eval_dataset=examples(data),
    )
    trainer.train()
    torch.testing.assert_close(posterior.likelihood.target_loc, data["labels"].mean(0))
    assert 300 < trainer.evaluate()["eval_error"] + 500 < 700
    again = bbh.methods.bayes_by_backprop(bert(num_labels=1), Gaussian())
    resumed = BayesianTrainer(
        again,
        arguments(tmp_path, **settings),
        train_dataset=examples(data),
        eval_dataset=examples(data),
    )
    resumed.train(resume_from_checkpoint=True)
    assert_same(posterior, again, rtol=0, atol=0)


class TestErrors:
    def test_helper_networks(self, tmp_path):
        divergence = bbh.divergences.Adversarial()
        posterior = bbh.methods.bayes_by_hypernet(bert(), Categorical(), divergence=divergence)
        with pytest.raises(ValueError, match="LightningPosterior"):
            BayesianTrainer(posterior, arguments(tmp_path))

    def test_data_without_a_length(self, tmp_path):
        posterior = bbh.methods.maximum_a_posteriori(bert(), Categorical())
        trainer = BayesianTrainer(posterior, arguments(tmp_path))
        with pytest.raises(ValueError, match="num_data="):
            trainer.train()

    def test_weights_that_are_not_finite(self, tmp_path):
        posterior = bbh.methods.maximum_a_posteriori(bert(), Categorical())
        with torch.no_grad():
            next(posterior.parameters()).fill_(torch.nan)
        trainer = BayesianTrainer(
            posterior, arguments(tmp_path), train_dataset=examples(sentences(8))
        )
        with pytest.raises(bbh.DivergedError, match="is nan"):
            trainer.train()

    def test_transformers_is_not_installed(self, monkeypatch):
        monkeypatch.delitem(sys.modules, "bbh.adapters.hugging_face")
        monkeypatch.setitem(sys.modules, "transformers", None)
        with pytest.raises(ImportError, match=r"pip install 'bayes-by-hypernet\[huggingface\]'"):
            _ = bbh.adapters.BayesianTrainer
