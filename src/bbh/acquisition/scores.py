"""What a single example is worth, as one number per example of the pool."""

from jaxtyping import Float
from torch import Tensor

from bbh import metrics
from bbh.decisions.predictions import Array, class_probabilities
from bbh.predictive import ClassPredictive


def entropy(predictive: ClassPredictive | Array) -> Float[Tensor, " B"]:
    """Entropy of the averaged probabilities, in nats: examples whose class is unclear.

    It is large both where draws disagree and where classes overlap, and labels help only with the
    first: see ``bald``.

    Args:
        predictive: Predictions for the pool, or probabilities [B, C].
    """
    return metrics.entropy(class_probabilities(predictive))


def bald(predictive: ClassPredictive) -> Float[Tensor, " B"]:
    """Mutual information of label and weights, in nats: how much a label would teach.

        H[E_w p(y | x, w)] − E_w H[p(y | x, w)]

    Houlsby et al. (2011), "Bayesian active learning for classification and preference learning".

    Args:
        predictive: Predictions for the pool.
    """
    class_probabilities(predictive)  # raises for what is no prediction of classes
    return predictive.mutual_information.detach().cpu().double()


def variation_ratio(predictive: ClassPredictive | Array) -> Float[Tensor, " B"]:
    """1 − probability of the predicted class: predictions with little confidence.

    Args:
        predictive: Predictions for the pool, or probabilities [B, C].
    """
    return 1 - class_probabilities(predictive).amax(1)


def margin(predictive: ClassPredictive | Array) -> Float[Tensor, " B"]:
    """1 − (largest − second largest probability): examples between two classes.

    Args:
        predictive: Predictions for the pool, or probabilities [B, C].
    """
    first, second = class_probabilities(predictive).topk(2, dim=1).values.unbind(1)
    return 1 - (first - second)
