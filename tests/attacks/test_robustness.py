"""Accuracy and uncertainty against the size of an attack, and attacks that transfer."""

import math
from dataclasses import astuple

import pytest
import torch

import bbh
from attacks.linear import LABELS, Categorical, images, linear_ensemble
from bbh.attacks import (
    FGSM,
    L2,
    LInf,
    robustness,
)
from scenarios import mlp


class TestRobustness:
    def test_rows_are_what_prediction_and_metrics_say(self):
        posterior, _, _ = linear_ensemble()
        inputs = torch.rand(40, 4)
        labels = bbh.predict(posterior, inputs).labels
        rows = robustness(posterior, inputs, labels, [0.0, 0.1, 0.5], FGSM(norm=L2()))
        clean = bbh.predict(posterior, inputs)
        for row, epsilon in zip(rows, [0.0, 0.1, 0.5], strict=True):
            attacked = FGSM(norm=L2())(posterior, inputs, labels, epsilon)
            predictive = bbh.predict(posterior, attacked.inputs)
            information = predictive.mutual_information
            expected = (
                epsilon,
                float((predictive.labels == labels).float().mean()),
                float(predictive.entropy.mean()) / math.log(3),
                float(information.mean()),
                bbh.metrics.auroc(clean.entropy, predictive.entropy),
                bbh.metrics.auroc(clean.mutual_information, information),
                float(attacked.size(LInf()).mean()),
                float(attacked.size(L2()).mean()),
            )
            assert astuple(row) == pytest.approx(expected, abs=1e-5)
        # Clean inputs cannot be told from themselves.
        assert rows[0].auroc_entropy == pytest.approx(0.5)
        assert rows[0].auroc_mutual_information == pytest.approx(0.5)
        assert rows[0].accuracy == 1 > rows[2].accuracy

    def test_transfer_attacks_one_posterior_and_judges_another(self):
        source, _, _ = linear_ensemble()
        victim, _, _ = linear_ensemble()
        inputs = images(40)
        labels = bbh.predict(victim, inputs).labels
        (row,) = robustness(victim, inputs, labels, [0.2], source=source)
        moved = FGSM()(source, inputs, labels, 0.2).inputs
        assert row.accuracy == bbh.metrics.accuracy(bbh.predict(victim, moved).mean, labels)
        (white_box,) = robustness(victim, inputs, labels, [0.2])
        assert white_box.accuracy < row.accuracy <= 1  # networks that share nothing

    def test_evaluation_never_sees_the_draws_of_the_attack(self):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
        seen: list[float] = []
        sample = posterior.weights.sample

        def recorded(num_samples: int):
            draws = sample(num_samples)
            seen.extend(draws["0.weight"][:, 0, 0].tolist() if num_samples == 8 else [])
            return draws

        posterior.weights.sample = recorded
        robustness(posterior, images(), LABELS, [0.1, 0.2], FGSM(num_samples=8), num_samples=8)
        # Eight for the attack at both sizes, eight for the one prediction, none twice.
        assert len(seen) == len(set(seen)) == 16

    def test_given_draws_are_used_by_each_side(self):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical()).eval()
        inputs = images()
        with torch.no_grad():
            ours, theirs = posterior.sample(3), posterior.sample(4)
        (row,) = robustness(posterior, inputs, LABELS, [0.1], samples=ours, attack_samples=theirs)
        moved = FGSM()(posterior, inputs, LABELS, 0.1, samples=theirs).inputs
        expected = bbh.predict(posterior, moved, samples=ours).entropy.mean() / math.log(3)
        assert row.normalised_entropy == pytest.approx(float(expected), abs=1e-6)
