"""How well a score separates outliers from data like the training data.

A higher score means that an input is more likely an outlier, as for predictive entropy, mutual
information or 1 - confidence. Outliers always count as positives, as in Hendrycks et al. (2019),
"Deep anomaly detection with outlier exposure"; papers that count them as negatives report a
different AUPR and FPR.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from bbh.metrics import checks


def auroc(in_scores: Float[Tensor, "I"], out_scores: Float[Tensor, "O"]) -> float:
    """Area under the ROC curve: how often an outlier scores above an inlier, ties counting half.

        P(out > in) + ½ P(out = in)

    Hendrycks & Gimpel (2017), "A baseline for detecting misclassified and out-of-distribution
    examples in neural networks". 0.5 is chance.

    Args:
        in_scores: Scores of data like the training data.
        out_scores: Scores of outliers.

    Examples:
        >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.3]))
        0.875
    """
    # Imported only when needed: it would take a fifth of the time of `import bbh`.
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(*_labels_and_scores(in_scores, out_scores)))


def aupr(in_scores: Float[Tensor, "I"], out_scores: Float[Tensor, "O"]) -> float:
    """Average precision of detecting outliers; chance is the fraction of outliers.

        Σ_n (recall_n − recall_{n−1}) · precision_n

    over the distinct thresholds from the highest down. There is no interpolation, for the reasons
    in Davis & Goadrich (2006), "The relationship between precision-recall and ROC curves".

    Args:
        in_scores: Scores of data like the training data.
        out_scores: Scores of outliers.

    Examples:
        >>> round(aupr(torch.tensor([0.1, 0.25]), torch.tensor([0.2, 0.3])), 4)
        0.8333
    """
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(*_labels_and_scores(in_scores, out_scores)))


def fpr_at_95_tpr(in_scores: Float[Tensor, "I"], out_scores: Float[Tensor, "O"]) -> float:
    """Fraction of inliers flagged by the strictest rule that flags at least 95 % of the outliers.

        P(in ≥ t),  t the largest threshold with P(out ≥ t) ≥ 0.95

    Liang et al. (2018), "Enhancing the reliability of out-of-distribution image detection in
    neural networks", with outliers as positives. The threshold is one of the scores, never
    interpolated between two.

    Args:
        in_scores: Scores of data like the training data.
        out_scores: Scores of outliers.

    Examples:
        >>> fpr_at_95_tpr(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.3, 0.5]))
        0.5
    """
    from sklearn.metrics import roc_curve

    labels, scores = _labels_and_scores(in_scores, out_scores)
    # All points of the curve are needed: without intermediate points, the first point with at least
    # 95 % could lie at the far end of a straight piece.
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    return float(fpr[int(np.argmax(tpr >= 0.95))])


def _labels_and_scores(in_scores: Tensor, out_scores: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """Labels (1 for outliers) and scores of both sets in one array each."""
    in_scores = checks.numbers("in_scores", in_scores, num_dims=1)
    out_scores = checks.numbers("out_scores", out_scores, num_dims=1)
    labels = np.repeat([0, 1], [len(in_scores), len(out_scores)])
    return labels, torch.cat([in_scores, out_scores]).detach().cpu().numpy()
