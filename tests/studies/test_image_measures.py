"""What is measured of a classification, by hand on four images and two outliers."""

import math

import pytest
import torch
from torch import nn

import bbh
from bbh.predictive import ClassPredictive
from bbh_studies.problems.images.measures import measure


def predictive(yes, mutual_information):
    mean = torch.tensor([[1 - one, one] for one in yes])
    entropy = torch.special.entr(mean).sum(1)
    confidence, labels = mean.max(1)
    return ClassPredictive(
        mean=mean,
        num_samples=3,
        entropy=entropy,
        expected_entropy=entropy - torch.tensor(mutual_information),
        confidence=confidence,
        labels=labels,
        draws=None,
    )


def test_every_measure_is_of_the_right_images():
    inside = predictive([0.1, 0.2, 0.4, 0.7], [0.0, 0.1, 0.2, 0.22])
    outside = predictive([0.5, 0.15], [0.25, 0.15])
    posterior = bbh.methods.maximum_a_posteriori(nn.Linear(2, 2), bbh.likelihoods.Categorical())
    found = measure(posterior, inside, outside, torch.tensor([0, 0, 1, 1]))

    def area(probabilities):
        entropies = [-p * math.log(p) - (1 - p) * math.log(1 - p) for p in probabilities]
        return 1 - sum(entropies) / len(entropies) / math.log(2)

    nll = -math.log(0.9 * 0.8 * 0.4 * 0.7) / 4
    assert found["error"] == pytest.approx(25)
    assert found["nll"] == pytest.approx(nll, rel=1e-5)
    assert found["entropy_auc"] == pytest.approx(area([0.1, 0.2, 0.4, 0.7]), rel=1e-5)
    assert found["outlier_entropy_auc"] == pytest.approx(area([0.5, 0.15]), rel=1e-5)
    # As histograms: within a bin, and of outliers the one of full entropy is dropped.
    assert found["entropy_auc_histogram"] == pytest.approx(found["entropy_auc"], abs=0.002)
    assert found["outlier_entropy_auc_histogram"] == pytest.approx(area([0.15]), abs=0.002)
    # Entropies: outliers rank first and fifth of six.
    assert found["ood_auroc"] == pytest.approx((4 + 1) / 8)
    assert found["ood_aupr"] == pytest.approx((1 / 1 + 2 / 5) / 2)
    assert found["ood_fpr95"] == pytest.approx(3 / 4)
    # Mutual information: first and fourth.
    assert found["ood_auroc_mi"] == pytest.approx((4 + 2) / 8)
    assert found["ood_aupr_mi"] == pytest.approx((1 / 1 + 2 / 4) / 2)
    assert found["ood_fpr95_mi"] == pytest.approx(2 / 4)
    # The one mistake is the image of most entropy, answered last: risks 0, 0, 0, 1/4.
    assert found["risk_coverage_area"] == pytest.approx(1 / 16)
